/* Start of the layer: what was chosen, and the names of the calls. */
#include "ucx.h"

bool ucx_ucp_on, ucx_uct_on;
enum st_mode ucx_mode;
uint8_t ucx_calls[UCX_CALLS];

__attribute__((constructor)) static void ucx_start(void)
{
    ucx_mode = st_mode();
    ucx_ucp_on = ucx_mode != ST_MODE_OFF && st_layer_on(ST_LAYER_UCP);
    ucx_uct_on = ucx_mode != ST_MODE_OFF && st_layer_on(ST_LAYER_UCT);
#define UCX_REGISTER(name) ucx_calls[UCX_CALL_##name] = st_call_register(#name);
    if (ucx_ucp_on) {
        UCX_UCP_WRAPPED(UCX_REGISTER)
    }
#undef UCX_REGISTER
#define UCX_REGISTER(name) ucx_calls[UCX_CALL_uct_##name] = st_call_register("uct_" #name);
    if (ucx_uct_on) {
        UCX_UCT_WRAPPED(UCX_REGISTER)
        UCX_REGISTER(am_handler)
    }
#undef UCX_REGISTER
}
