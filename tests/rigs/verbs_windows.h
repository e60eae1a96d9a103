/* The phases of verbs_pair.c with memory windows: bound, used by the other end, made void by
 * either. */

static struct ibv_mr *window_region;

static struct ibv_mw_bind_info whole_region(void)
{
    return (struct ibv_mw_bind_info){window_region, (uintptr_t)memory, MEMORY,
                                     IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
}

static void open_windows(struct ibv_mw **windows, int count)
{
    window_region = ibv_reg_mr(pd, memory, MEMORY, ACCESS | IBV_ACCESS_MW_BIND);
    check(window_region, "ibv_reg_mr");
    for (int i = 0; i < count; i++) {
        windows[i] = ibv_alloc_mw(pd, i ? IBV_MW_TYPE_2 : IBV_MW_TYPE_1);
        check(windows[i], "ibv_alloc_mw");
    }
}

static void close_windows(struct ibv_mw **windows, int count)
{
    for (int i = 0; i < count; i++)
        check(!ibv_dealloc_mw(windows[i]), "ibv_dealloc_mw");
    check(!ibv_dereg_mr(window_region), "ibv_dereg_mr");
}

/* The old way, for a window of type 1: the library makes the request, and chooses the key. */
static uint32_t bind_at_once(struct link *l, struct ibv_mw *window)
{
    struct ibv_mw_bind bind = {(unsigned)next_id++, SIGNALED, whole_region()};
    check(!ibv_bind_mw(l->qp, window, &bind), "ibv_bind_mw");
    struct ibv_send_wr wr = {.wr_id = bind.wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = SIGNALED};
    wr.bind_mw.bind_info = bind.bind_info;
    wr.bind_mw.rkey = window->rkey;
    print_sent(l, &wr);
    return window->rkey;
}

static void use_window(struct link *l, int opcode, uint32_t size, uint32_t rkey)
{
    add(l, opcode, size, SIGNALED)->wr.rdma.rkey = rkey;
}

/* Three windows of the server. The client makes the second one void with its messages; the server
 * makes the third one void, and binds it again. */
static void windows(void)
{
    struct link l;
    struct ibv_mw *mine[3];
    uint32_t keys[3] = {0}, theirs[3];
    phase = "windows";
    create(&l, IBV_QPT_RC, NULL, true);
    connect_link(&l, client ? 0 : 3);
    if (!client) {
        open_windows(mine, 3);
        keys[0] = bind_at_once(&l, mine[0]);
        for (int i = 1; i < 3; i++)
            keys[i] = add_binding(&l, mine[i], whole_region());
        check(post(&l) == 2, "bind");
        collect(3);
        mine[2]->rkey = keys[2]; /* the library leaves this to the program */
    }
    for (int round = 0; round < 2; round++) {
        exchange(keys, theirs, sizeof(keys));
        if (client) {
            use_window(&l, WRITE, 100, theirs[0]);
            use_window(&l, READ, 300, theirs[2]);
            if (!round)
                use_window(&l, WRITE_IMM, 200, theirs[1]);
            add_invalidation(&l, SEND_INV, round ? 2500 : 70, theirs[round ? 2 : 1]);
            check(post(&l) == 4 - round, "windows");
        }
        collect(client ? 4 - round : 2 - round);
        meet();
        if (!client && !round) {
            add_invalidation(&l, INVALIDATE, 0, keys[2]);
            keys[2] = add_binding(&l, mine[2], whole_region());
            check(post(&l) == 2, "bind again");
            collect(2);
        }
    }
    destroy(&l);
    if (!client)
        close_windows(mine, 3);
}

/* The client uses a window that its own message has made void. */
static void invalidated(void)
{
    struct link l;
    struct ibv_mw *mine[2];
    uint32_t key = 0, other;
    phase = "invalidated";
    create(&l, IBV_QPT_RC, NULL, false);
    connect_link(&l, client ? 2 : 3);
    if (!client) {
        open_windows(mine, 2);
        key = add_binding(&l, mine[1], whole_region());
        check(post(&l) == 1, "bind");
        collect(1);
    }
    exchange(&key, &other, sizeof(key));
    if (client) {
        use_window(&l, WRITE, 90, other);
        add_invalidation(&l, SEND_INV, 40, other);
        fail(&l, 2, (struct failing){WRITE, 60, mr->lkey, other});
    } else {
        collect(3);
    }
    meet();
    destroy(&l);
    if (!client)
        close_windows(mine, 2);
}
