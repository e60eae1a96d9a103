/* Start of the layer: what was chosen, and the names of the calls. */
#include "ucx.h"

bool st_ucp_on, st_uct_on;
enum st_mode st_ucx_mode;
uint8_t st_ucx_calls[ST_CALLS];

__attribute__((constructor)) static void st_ucx_start(void)
{
    st_ucx_mode = st_mode();
    st_ucp_on = st_ucx_mode != ST_MODE_OFF && st_layer_on(ST_LAYER_UCP);
    st_uct_on = st_ucx_mode != ST_MODE_OFF && st_layer_on(ST_LAYER_UCT);
#define ST_REGISTER(name) st_ucx_calls[ST_CALL_##name] = st_call_register(#name);
    if (st_ucp_on) {
        ST_UCP_WRAPPED(ST_REGISTER)
    }
#undef ST_REGISTER
#define ST_REGISTER(name) st_ucx_calls[ST_CALL_uct_##name] = st_call_register("uct_" #name);
    if (st_uct_on) {
        ST_UCT_WRAPPED(ST_REGISTER)
        ST_REGISTER(am_handler)
    }
#undef ST_REGISTER
}
