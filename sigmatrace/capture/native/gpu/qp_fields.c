/* What the commands that make and change a queue pair say, as fields of its object. */
#define _GNU_SOURCE
#include "hooks.h"
#include "mailbox.h"

#define MAC_BYTES 6u

/* Who has the field. */
#define OF(service) (1u << (service))
#define ALL UINT32_MAX
#define RELIABLE (OF(ST_RC) | OF(ST_XRC))
#define CONNECTED (RELIABLE | OF(ST_UC))
#define REQUESTER (RELIABLE | OF(ST_DCI))
#define ROUTED (CONNECTED | OF(ST_DCI)) /* a part of its way is its own */

/* By which command it is set, or may be, by these bits of the optional ones. Source: enum
 * mlx5_qp_optpar of Linux. */
enum when { CREATED, TO_INIT, TO_RTR, TO_RTS, OPTIONALLY };
enum optional {
    NOT_OPTIONAL = 0,
    ACCESS = 7u << 1,
    PKEY_INDEX = 1u << 4,
    QKEY = 1u << 5,
    RNR_TIMER = 1u << 6,
    SRA_MAX = 1u << 8,
    RRA_MAX = 1u << 9,
    RETRY_CNT = 1u << 12,
    RNR_RETRY = 1u << 13,
    TIMEOUT = 1u << 14,
};
/* Of its number: as it is; 0 stands for none; 2^n; the MTU's code; the bits of access; bytes. */
enum how { PLAIN, UNLESS_0, POWER, MTU, RIGHTS, MAC };

static const struct {
    const char *key;
    uint32_t who;
    uint32_t optional;
    uint8_t field, when, how;
} rows[] = {
    {"pdn", ALL, NOT_OPTIONAL, ST_QP_PD, CREATED, PLAIN},
    {"umem_offset", ALL, NOT_OPTIONAL, ST_QP_WQ_UMEM_OFFSET, CREATED, PLAIN},
    {"dbr_offset", ALL, NOT_OPTIONAL, ST_QP_DBR_ADDR, CREATED, PLAIN},
    {"log_sq_size", ALL, NOT_OPTIONAL, ST_QP_LOG_SQ_SIZE, CREATED, PLAIN},
    {"no_sq", ALL, NOT_OPTIONAL, ST_QP_NO_SQ, CREATED, UNLESS_0},
    {"rq_type", ALL, NOT_OPTIONAL, ST_QP_RQ_TYPE, CREATED, PLAIN},
    {"log_rq_size", ALL, NOT_OPTIONAL, ST_QP_LOG_RQ_SIZE, CREATED, UNLESS_0},
    {"log_rq_stride", ALL, NOT_OPTIONAL, ST_QP_LOG_RQ_STRIDE, CREATED, UNLESS_0},
    {"srqn", ALL, NOT_OPTIONAL, ST_QP_SRQN, CREATED, UNLESS_0},
    {"cqn_snd", ALL, NOT_OPTIONAL, ST_QP_CQN_SND, CREATED, PLAIN},
    {"cqn_rcv", ALL, NOT_OPTIONAL, ST_QP_CQN_RCV, CREATED, PLAIN},
    {"page_offset", ALL, NOT_OPTIONAL, ST_QP_PAGE_OFFSET, CREATED, UNLESS_0},
    {"send_dbr_mode", ALL, NOT_OPTIONAL, ST_QP_SEND_DBR_MODE, CREATED, PLAIN},
    {"user_index", ALL, NOT_OPTIONAL, ST_QP_USER_INDEX, CREATED, UNLESS_0},
    {"dc_access_key", ALL, NOT_OPTIONAL, ST_QP_DC_ACCESS_KEY, CREATED, UNLESS_0},
    {"pkey_index", ALL, PKEY_INDEX, ST_QP_PKEY_INDEX, TO_INIT, PLAIN},
    {"qkey", OF(ST_UD), QKEY, ST_QP_Q_KEY, TO_INIT, PLAIN},
    {"access", CONNECTED, ACCESS, ST_QP_ACCESS, TO_INIT, RIGHTS},
    {"path_mtu_bytes", ROUTED, NOT_OPTIONAL, ST_QP_MTU, TO_RTR, MTU},
    {"log_msg_max", ROUTED, NOT_OPTIONAL, ST_QP_LOG_MSG_MAX, TO_RTR, PLAIN},
    {"rq_psn", CONNECTED, NOT_OPTIONAL, ST_QP_NEXT_RCV_PSN, TO_RTR, PLAIN},
    {"max_dest_rd_atomic", RELIABLE, RRA_MAX, ST_QP_LOG_RRA_MAX, TO_RTR, POWER},
    {"min_rnr_timer", RELIABLE, RNR_TIMER, ST_QP_MIN_RNR_NAK, TO_RTR, PLAIN},
    {"sl", ROUTED, NOT_OPTIONAL, ST_QP_SL, TO_RTR, PLAIN},
    {"stat_rate", ROUTED, NOT_OPTIONAL, ST_QP_STAT_RATE, TO_RTR, UNLESS_0},
    {"mlid", ROUTED, NOT_OPTIONAL, ST_QP_MLID, TO_RTR, UNLESS_0},
    {"grh", ROUTED, NOT_OPTIONAL, ST_QP_GRH, TO_RTR, UNLESS_0},
    {"sgid_index", ROUTED, NOT_OPTIONAL, ST_QP_SRC_ADDR_INDEX, TO_RTR, PLAIN},
    {"traffic_class", ROUTED, NOT_OPTIONAL, ST_QP_TCLASS, TO_RTR, PLAIN},
    {"hop_limit", ROUTED, NOT_OPTIONAL, ST_QP_HOP_LIMIT, TO_RTR, PLAIN},
    {"flow_label", ROUTED, NOT_OPTIONAL, ST_QP_FLOW_LABEL, TO_RTR, UNLESS_0},
    {"dscp", ROUTED, NOT_OPTIONAL, ST_QP_DSCP, TO_RTR, UNLESS_0},
    {"udp_sport", ROUTED, NOT_OPTIONAL, ST_QP_UDP_SPORT, TO_RTR, UNLESS_0},
    {"eth_prio", ROUTED, NOT_OPTIONAL, ST_QP_ETH_PRIO, TO_RTR, UNLESS_0},
    {"dmac", ROUTED, NOT_OPTIONAL, ST_QP_RMAC, TO_RTR, MAC},
    {"sq_psn", CONNECTED | OF(ST_UD), NOT_OPTIONAL, ST_QP_NEXT_SEND_PSN, TO_RTS, PLAIN},
    {"timeout", REQUESTER, TIMEOUT, ST_QP_ACK_TIMEOUT, TO_RTS, PLAIN},
    {"retry_cnt", REQUESTER, RETRY_CNT, ST_QP_RETRY_COUNT, TO_RTS, PLAIN},
    {"rnr_retry", REQUESTER, RNR_RETRY, ST_QP_RNR_RETRY, TO_RTS, PLAIN},
    {"max_rd_atomic", REQUESTER, SRA_MAX, ST_QP_LOG_SRA_MAX, TO_RTS, POWER},
};

/* enum ibv_access_flags, of the bits for reads, writes and atomics. */
static uint64_t rights(uint64_t bits)
{
    return (bits & 4 ? IBV_ACCESS_REMOTE_READ : 0) | (bits & 2 ? IBV_ACCESS_REMOTE_WRITE : 0) |
           (bits & 1 ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

static void put(struct st_object *o, const char *key, enum how how, uint64_t value)
{
    uint8_t mac[MAC_BYTES];
    switch (how) {
    case POWER:
        value = 1ull << value;
        break;
    case MTU:
        value = 128ull << value; /* 1 is 256 */
        break;
    case RIGHTS:
        value = rights(value);
        break;
    case MAC:
        for (uint32_t i = 0; i < MAC_BYTES; i++)
            mac[i] = (uint8_t)(value >> 8 * (MAC_BYTES - 1 - i));
        if (value)
            st_object_bin(o, key, mac, sizeof(mac));
        return;
    case UNLESS_0:
        if (!value)
            return;
        break;
    case PLAIN:
        break;
    }
    st_object_u64(o, key, value);
}

static enum when when_of(uint64_t command)
{
    switch (command) {
    case ST_CREATE_QP:
        return CREATED;
    case ST_RST2INIT:
        return TO_INIT;
    case ST_INIT2RTR:
        return TO_RTR;
    case ST_RTR2RTS:
        return TO_RTS;
    default:
        return OPTIONALLY;
    }
}

void st_qp_fields_put(struct st_object *o, uint32_t service, const uint8_t *in, size_t in_size)
{
    uint64_t command = st_mailbox(in, in_size, ST_COMMAND);
    enum when when = when_of(command);
    bool changes = when != CREATED && command != ST_TO_ERROR && command != ST_TO_RESET;
    uint64_t optional = changes ? st_mailbox(in, in_size, ST_QP_OPTIONAL) : 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool told = rows[i].when == when ||
                    (rows[i].optional && (optional & rows[i].optional) == rows[i].optional);
        if (told && (rows[i].who == ALL || (service < 32 && rows[i].who & OF(service))))
            put(o, rows[i].key, rows[i].how,
                st_mailbox(in, in_size, (enum st_field_name)rows[i].field));
    }
}

void st_qp_totals_add(struct st_gpu_qp_totals *totals, const struct st_gpu_qp_totals *more)
{
    totals->doorbells += more->doorbells;
    totals->slots += more->slots;
    totals->invalid_slots += more->invalid_slots;
    totals->uncopied_slots += more->uncopied_slots;
}
