/* The phases of verbs_pair.c in which requests fail. */

struct failing {
    int opcode;
    uint32_t size, lkey, rkey;
};

/* Posts a request that fails and three behind it, of which the client's two receives are flushed,
 * too. `before`: completions of what the list has already. */
static void fail(struct link *l, int before, struct failing f)
{
    int good = listed;
    struct ibv_send_wr *wr = add(l, f.opcode, f.size, 0);
    wr->sg_list[0].lkey = f.lkey;
    if (f.opcode == WRITE || f.opcode == READ)
        wr->wr.rdma.rkey = f.rkey;
    for (int i = 0; i < 3; i++)
        add(l, i == 1 ? WRITE : SEND, 80, i ? 0 : SIGNALED);
    check(post(l) == good + 4, "post");
    collect(before + 4 + 2);
}

static void bad_rkey(const char *name, int opcode, bool split)
{
    struct link l;
    phase = name;
    create(&l, IBV_QPT_RC, NULL, split);
    connect_link(&l, client ? 2 : 3);
    if (client) {
        add(&l, SEND, 40, SIGNALED);
        add(&l, WRITE, 40, 0); /* retires in silence */
        fail(&l, 1, (struct failing){opcode, 60, mr->lkey, l.other.rkey ^ 0x5a5a00});
    } else {
        collect(3);
    }
    meet();
    destroy(&l);
}

/* The server has a receive for the good message alone: a read fails when its response comes, and
 * what was sent behind it must not have arrived by then. */
static void bad_lkey(const char *name, int opcode)
{
    struct link l;
    phase = name;
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, client ? 2 : 1);
    if (client) {
        add(&l, SEND, 40, SIGNALED);
        check(post(&l) == 1, "post");
    }
    collect(1);
    if (client)
        fail(&l, 0, (struct failing){opcode, 60, mr->lkey ^ 0x5a5a00, l.other.rkey});
    meet();
    destroy(&l);
}

/* The message is longer than the receive that it meets. */
static void too_long(void)
{
    struct link l;
    phase = "too_long";
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, 2);
    if (client) {
        fail(&l, 0, (struct failing){SEND, SLOT + 1, mr->lkey, 0});
    } else {
        collect(2);
    }
    meet();
    destroy(&l);
}

/* There is no receive. */
static void not_ready(void)
{
    struct link l;
    phase = "not_ready";
    create(&l, IBV_QPT_RC, NULL, false);
    l.rnr_retries = 1;
    connect_link(&l, client ? 2 : 0);
    if (client)
        fail(&l, 0, (struct failing){SEND, 60, mr->lkey, 0});
    meet();
    destroy(&l);
}

/* The client gives up messages that nobody takes by going into the error state, and connects
 * anew. */
static void recovered(void)
{
    struct link l;
    phase = "recovered";
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, client ? 2 : 0);
    if (client) {
        add(&l, SEND, 50, SIGNALED);
        add(&l, SEND, 51, 0);
        check(post(&l) == 2, "post");
        modify(&l, (struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, 0);
        collect(2 + 2);
    }
    meet();
    modify(&l, (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, 0);
    l.life++;
    connect_link(&l, client ? 0 : 3);
    for (int i = 0; client && i < 3; i++)
        add(&l, SEND, 60u + (unsigned)i, SIGNALED);
    check(!client || post(&l) == 3, "post");
    collect(3);
    meet();
    destroy(&l);
}

/* The receiver is not ready, and the sender asks without end, until it gives its queue pair up. */
static void destroyed(void)
{
    struct link l;
    phase = "destroyed";
    create(&l, IBV_QPT_RC, NULL, false);
    l.rnr_timer = 0;
    connect_link(&l, client ? 2 : 0);
    for (int i = 0; client && i < 3; i++)
        add(&l, SEND, 33, SIGNALED);
    if (client)
        check(post(&l) == 3, "post");
    if (client)
        destroy(&l);
    meet();
    if (!client)
        destroy(&l);
}

/* What soft-RoCE does not have: XRC. */
static void not_offered(void)
{
    struct ibv_xrcd_init_attr domain = {IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, -1, 0};
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = cqs[0], .recv_cq = cqs[0], .cap = {SLOTS, 0, 1, 0, 0}, .pd = pd,
        .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD};
    phase = "not_offered";
    errno = 0;
    check(!ibv_open_xrcd(device, &domain) && errno == EOPNOTSUPP, "ibv_open_xrcd");
    errno = 0;
    check(!ibv_create_qp_ex(device, &attr) && errno == EOPNOTSUPP, "ibv_create_qp_ex");
}

/* The server is killed when it has received five messages. */
static void killed(void)
{
    struct link l;
    char none;
    phase = "killed";
    create(&l, IBV_QPT_RC, NULL, false);
    l.timeout = 12;
    l.retries = 2;
    connect_link(&l, client ? 2 : 20);
    for (int i = 0; client && i < 5; i++)
        add(&l, SEND, 100, SIGNALED);
    if (client)
        post(&l);
    collect(5);
    meet();
    if (!client) {
        fflush(stdout);
        raise(SIGKILL);
    }
    check(!receive_all(&none, 1), "the server lives");
    /* The socket is closed before the queue pair is; what is acknowledged in between, and what is
     * not, soft-RoCE may retry without end. The test knows when the server is gone. */
    time_t end = time(NULL) + DEADLINE_S;
    while (access(getenv("SERVER_GONE"), F_OK))
        check(time(NULL) < end && !usleep(1000), "the server is gone");
    fail(&l, 0, (struct failing){SEND, 60, mr->lkey, 0});
    destroy(&l);
    exit(0);
}
