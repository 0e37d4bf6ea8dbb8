/* test_oracle.c - the oracle flags what streams and events do not order, and nothing else.
 *
 * Each case runs once with the edge that makes it right and once without. */
#include <pthread.h>

#include "../../csrc/driver/oracle.h"
#include "testing.h"

#define P2 ((uint64_t)2 << 20)
#define COUNT(LIST) (int)(sizeof(LIST) / sizeof *(LIST))

/* A machine, two streams aside of the legacy one, eight pages mapped in a row. */
typedef struct bench {
    ta_sim *sim;
    const ta_driver *d;
    ta_stream a, b;
    ta_event e, f;
    ta_handle pages[8];
    uint64_t at;
} bench;

static bench set_up(void)
{
    bench x = {0};
    const ta_sim_config config = {.devices = 1, .memory = 64 * P2};
    const int zero = 0;
    if (ta_sim_create(&config, &x.sim) != TA_OK) abort();
    x.d = ta_sim_driver(x.sim);
    ta_sim_stream_create(x.sim, 0, false, &x.a);
    ta_sim_stream_create(x.sim, 0, false, &x.b);
    x.d->event_create(x.sim, 0, &x.e);
    x.d->event_create(x.sim, 0, &x.f);
    x.d->reserve(x.sim, 8 * P2, 0, &x.at);
    for (int i = 0; i < 8; i++) {
        x.d->create(x.sim, 0, TA_TIER_DEVICE, P2, &x.pages[i]);
        x.d->map(x.sim, x.at + (uint64_t)i * P2, P2, x.pages[i]);
    }
    x.d->set_access(x.sim, x.at, 8 * P2, &zero, 1);
    return x;
}

static void reads(bench *x, ta_stream s, uint64_t addr, uint64_t size)
{
    const ta_sim_range range = {addr, size, false};
    ta_sim_launch(x->sim, 0, s, &range, 1, 100);
}

static void writes(bench *x, ta_stream s, uint64_t addr, uint64_t size)
{
    const ta_sim_range range = {addr, size, true};
    ta_sim_launch(x->sim, 0, s, &range, 1, 100);
}

/* `later` comes after what is in `earlier`. */
static void edge(bench *x, ta_stream earlier, ta_stream later)
{
    x->d->event_record(x->sim, x->e, 0, earlier);
    ta_sim_stream_wait_event(x->sim, 0, later, x->e);
}

static void host_waits(bench *x, ta_stream s)
{
    x->d->event_record(x->sim, x->e, 0, s);
    x->d->event_wait(x->sim, x->e, TA_FOREVER_US);
}

static uint64_t violations(const bench *x)
{
    uint64_t count;
    ta_sim_first_violation(x->sim, &count);
    return count;
}

/* A case: right when `ordered`, wrong when not. */
typedef void scenario(bench *x, bool ordered);

static void both_ways(const char *name, scenario *run)
{
    for (int ordered = 0; ordered < 2; ordered++) {
        bench x = set_up();
        run(&x, ordered);
        const char *text = ta_sim_first_violation(x.sim, NULL);
        if ((text == NULL) != (ordered == 1)) {
            printf("%s, %s: %s\n", name, ordered ? "ordered" : "not ordered",
                   text ? text : "nothing was flagged");
            ta_test_failed = 1;
        }
        ta_sim_destroy(x.sim);
    }
}
#define CASE(NAME)                                                                       \
    static void NAME(bench *x, bool ordered);                                            \
    TEST(NAME) { both_ways(#NAME, NAME); }                                               \
    static void NAME(bench *x, bool ordered)

/* --- ranges -------------------------------------------------------------------------- */
CASE(read_after_write)
{
    writes(x, x->a, x->at, 4096);
    if (ordered) edge(x, x->a, x->b);
    reads(x, x->b, x->at + 4095, 1);
}

CASE(write_after_read)
{
    reads(x, x->a, x->at, 4096);
    if (ordered) edge(x, x->a, x->b);
    writes(x, x->b, x->at, 1);
}

CASE(write_after_write)
{
    writes(x, x->a, x->at, 4096);
    if (ordered) edge(x, x->a, x->b);
    writes(x, x->b, x->at, 4096);
}

/* The event stands before the work that matters. */
CASE(event_too_early)
{
    if (!ordered) x->d->event_record(x->sim, x->e, 0, x->a);
    writes(x, x->a, x->at, 4096);
    if (ordered) x->d->event_record(x->sim, x->e, 0, x->a);
    ta_sim_stream_wait_event(x->sim, 0, x->b, x->e);
    reads(x, x->b, x->at, 4096);
}

/* An event recorded again stands for the later point only for those who wait later. */
CASE(wait_before_second_record)
{
    x->d->event_record(x->sim, x->e, 0, x->a);
    if (!ordered) ta_sim_stream_wait_event(x->sim, 0, x->b, x->e);
    writes(x, x->a, x->at, 4096);
    x->d->event_record(x->sim, x->e, 0, x->a);
    if (ordered) ta_sim_stream_wait_event(x->sim, 0, x->b, x->e);
    reads(x, x->b, x->at, 4096);
}

CASE(order_through_a_third_stream)
{
    writes(x, x->a, x->at, 4096);
    edge(x, x->a, NULL);
    if (!ordered) { /* the third stream's point before it waited */
        x->d->event_record(x->sim, x->f, 0, x->a);
        reads(x, NULL, x->at, 4096);
        writes(x, x->a, x->at + P2, 4096);
        ta_sim_stream_wait_event(x->sim, 0, x->b, x->f);
        reads(x, x->b, x->at + P2, 4096);
        return;
    }
    edge(x, NULL, x->b);
    writes(x, x->b, x->at, 4096);
}

/* Time that has passed orders nothing by itself; seeing an event does. */
CASE(host_must_look)
{
    writes(x, x->a, x->at, 4096);
    x->d->event_record(x->sim, x->e, 0, x->a);
    ta_sim_advance_us(x->sim, 1e6);
    if (ordered) x->d->event_query(x->sim, x->e);
    writes(x, x->b, x->at, 4096);
}

/* A query that says "not yet" has seen nothing. */
CASE(host_sees_only_what_has_passed)
{
    writes(x, x->a, x->at, 4096);
    x->d->event_record(x->sim, x->e, 0, x->a);
    if (ordered) ta_sim_advance_us(x->sim, 1e6);
    x->d->event_query(x->sim, x->e);
    writes(x, x->b, x->at, 4096);
}

CASE(host_waits_for_stream)
{
    writes(x, x->a, x->at, 4096);
    ta_sim_stream_wait(x->sim, 0, ordered ? x->a : x->b);
    writes(x, x->b, x->at, 4096);
}

CASE(host_waits_for_device)
{
    writes(x, x->a, x->at, 4096);
    if (ordered) x->d->device_wait(x->sim, 0);
    writes(x, x->b, x->at, 4096);
}

/* What the host saw done through b, which waited for a. */
CASE(host_sees_through_an_edge)
{
    writes(x, x->a, x->at, 4096);
    if (ordered) edge(x, x->a, x->b);
    host_waits(x, x->b);
    writes(x, NULL, x->at, 4096);
}

CASE(legacy_and_blocking_streams)
{
    ta_stream blocking;
    ta_sim_stream_create(x->sim, 0, ordered, &blocking);
    writes(x, blocking, x->at, 4096);
    reads(x, NULL, x->at, 4096);
    writes(x, blocking, x->at, 4096);
}

/* Two blocking streams, work on the legacy stream between them. */
CASE(legacy_stream_between)
{
    ta_stream first, second;
    ta_sim_stream_create(x->sim, 0, true, &first);
    ta_sim_stream_create(x->sim, 0, true, &second);
    writes(x, first, x->at, 4096);
    if (ordered) reads(x, (ta_stream)1, x->at + P2, 1);
    writes(x, second, x->at, 4096);
}

static void *write_on_own_default(void *context)
{
    bench *x = context;
    writes(x, (ta_stream)2, x->at, 4096);
    return NULL;
}

/* Stream 2 is another one in another thread. */
CASE(per_thread_streams)
{
    pthread_t thread;
    pthread_create(&thread, NULL, write_on_own_default, x);
    pthread_join(thread, NULL);
    if (ordered) reads(x, NULL, x->at, 1);
    writes(x, (ta_stream)2, x->at, 4096);
}

TEST(what_needs_no_order)
{
    bench x = set_up();
    writes(&x, x.a, x.at, 4096);
    writes(&x, x.b, x.at + 4096, 4096); /* other bytes */
    host_waits(&x, x.a);
    host_waits(&x, x.b);
    reads(&x, x.a, x.at, 8192); /* readers side by side */
    reads(&x, x.b, x.at, 8192);
    reads(&x, NULL, x.at, 8192);
    const ta_sim_range in_place[] = {{x.at + P2, 64, false}, {x.at + P2, 64, true}};
    ta_sim_launch(x.sim, 0, x.a, in_place, 2, 1);
    ta_sim_launch(x.sim, 0, x.a, in_place, 2, 1);
    CHECK_EQ(violations(&x), 0);
    /* One of several readers is not waited for. */
    edge(&x, x.a, x.b);
    writes(&x, x.b, x.at, 8192);
    CHECK_EQ(violations(&x), 1); /* the legacy stream's */
    ta_sim_destroy(x.sim);
}

/* S20: a block copied out, its memory reused. */
CASE(copy_out_then_reuse)
{
    static uint8_t host[4096];
    writes(x, x->a, x->at, 4096);
    edge(x, x->a, x->b);
    ta_sim_copy(x->sim, 0, x->b, (uint64_t)(uintptr_t)host, x->at, 4096);
    if (ordered) edge(x, x->b, x->a);
    writes(x, x->a, x->at, 4096);
}

CASE(copy_in_before_copy_out_is_done)
{
    const uint64_t staging = x->at + P2;
    ta_sim_copy(x->sim, 0, x->a, staging, x->at, 4096); /* out */
    if (ordered) edge(x, x->a, x->b);
    ta_sim_copy(x->sim, 0, x->b, x->at + 2 * P2, staging, 4096); /* in */
}

CASE(staging_slot_reused)
{
    const uint64_t staging = x->at + P2;
    ta_sim_copy(x->sim, 0, x->a, staging, x->at, 4096);
    edge(x, x->a, x->b);
    reads(x, x->b, staging, 4096);
    if (ordered) edge(x, x->b, x->a);
    ta_sim_fill(x->sim, 0, x->a, staging, 0, 4096);
}

CASE(consumer_on_the_current_stream)
{
    ta_sim_copy(x->sim, 0, x->b, x->at, x->at + P2, 4096);
    edge(x, x->b, x->a); /* the stream that was current */
    reads(x, ordered ? x->a : NULL, x->at, 4096);
}

/* --- unmapping ----------------------------------------------------------------------- */
CASE(unmap_under_queued_work)
{
    reads(x, x->a, x->at + P2, 1);
    if (ordered) host_waits(x, x->a);
    x->d->unmap(x->sim, x->at, 2 * P2);
}

/* An edge to another stream is not the host's seeing. */
CASE(unmap_needs_the_host)
{
    reads(x, x->a, x->at, 4096);
    edge(x, x->a, x->b);
    if (ordered) ta_sim_stream_wait(x->sim, 0, x->b);
    x->d->unmap(x->sim, x->at, P2);
}

/* Work that a later access covers still counts, through the later one. */
CASE(unmap_after_covered_access)
{
    writes(x, x->a, x->at, 4096);
    edge(x, x->a, x->b);
    writes(x, x->b, x->at, 8192);
    host_waits(x, ordered ? x->b : x->a);
    x->d->unmap(x->sim, x->at, P2);
}

CASE(plain_free_under_queued_work)
{
    uint64_t addr;
    x->d->plain_alloc(x->sim, 0, P2, &addr);
    writes(x, x->a, addr, 64);
    if (ordered) ta_sim_settle(x->sim, 0);
    x->d->plain_free(x->sim, 0, addr);
}

CASE(work_of_a_destroyed_stream)
{
    writes(x, x->b, x->at, 64);
    ta_sim_stream_destroy(x->sim, x->b);
    ta_stream next;
    ta_sim_stream_create(x->sim, 0, false, &next);
    if (ordered) x->d->device_wait(x->sim, 0);
    writes(x, next, x->at, 64);
}

CASE(work_on_what_is_not_mapped)
{
    x->d->unmap(x->sim, x->at, P2);
    writes(x, x->a, ordered ? x->at + P2 : x->at, 64);
}

/* --- graphs -------------------------------------------------------------------------- */
static ta_sim_graph *graph_writing(bench *x, uint64_t addr, uint64_t size)
{
    ta_sim_graph *graph = NULL;
    ta_sim_capture_begin(x->sim, 0, x->a);
    writes(x, x->a, addr, size);
    ta_sim_capture_end(x->sim, 0, x->a, &graph);
    return graph;
}

CASE(graph_touches_at_its_launch)
{
    ta_sim_graph *graph = graph_writing(x, x->at, 4096);
    reads(x, x->b, x->at, 4096); /* nothing has run yet */
    edge(x, x->b, x->a);
    ta_sim_graph_launch(x->sim, graph, 0, x->a);
    if (ordered) edge(x, x->a, x->b);
    reads(x, x->b, x->at, 4096);
    ta_sim_graph_destroy(x->sim, graph);
}

CASE(graph_launch_is_seen_by_unmap)
{
    ta_sim_graph *graph = graph_writing(x, x->at, 4096);
    ta_sim_graph_launch(x->sim, graph, 0, x->b);
    ta_sim_graph_destroy(x->sim, graph); /* what is launched goes on */
    host_waits(x, ordered ? x->b : x->a);
    x->d->unmap(x->sim, x->at, P2);
}

CASE(graph_over_unmapped_memory)
{
    ta_sim_graph *graph = graph_writing(x, x->at, 4096);
    const int zero = 0;
    const uint64_t gone = ordered ? x->at + P2 : x->at;
    x->d->unmap(x->sim, gone, P2);
    x->d->map(x->sim, gone, P2, x->pages[ordered]); /* contents are not the point */
    x->d->set_access(x->sim, gone, P2, &zero, 1);
    ta_sim_graph_launch(x->sim, graph, 0, x->a);
    ta_sim_graph_destroy(x->sim, graph);
}

CASE(order_inside_a_capture)
{
    ta_sim_graph *graph = NULL;
    ta_sim_capture_begin(x->sim, 0, x->a);
    edge(x, x->a, x->b);
    writes(x, x->a, x->at, 4096);
    if (ordered) edge(x, x->a, x->b);
    writes(x, x->b, x->at, 4096);
    edge(x, x->b, x->a);
    ta_sim_capture_end(x->sim, 0, x->a, &graph);
    ta_sim_graph_destroy(x->sim, graph);
}

/* Launches of one graph come one after another, on whatever streams. */
TEST(launches_of_one_graph_are_ordered)
{
    bench x = set_up();
    ta_sim_graph *graph = graph_writing(&x, x.at, 4096);
    for (int i = 0; i < 1000; i++)
        ta_sim_graph_launch(x.sim, graph, 0, i % 2 ? x.a : x.b);
    ta_sim_graph_destroy(x.sim, graph);
    CHECK_EQ(violations(&x), 0);
    ta_sim_destroy(x.sim);
}

/* --- blocks -------------------------------------------------------------------------- */
static void tell(bench *x, ta_event_kind kind, uint64_t addr, uint64_t size, ta_stream s)
{
    const ta_event_info event = {.kind = kind, .addr = addr, .size = size, .stream = s};
    ta_oracle_observe(x->sim, &event);
}

static void takes(bench *x, uint64_t addr, uint64_t size, ta_stream s)
{
    tell(x, TA_EVENT_ALLOC, addr, size, s);
}

static void gives(bench *x, uint64_t addr)
{
    tell(x, TA_EVENT_FREE, addr, 0, NULL);
    tell(x, TA_EVENT_FREE_DONE, addr, 0, NULL);
}

static void works(bench *x, ta_stream s) { ta_sim_launch(x->sim, 0, s, NULL, 0, 100); }

CASE(block_reused_on_another_stream)
{
    takes(x, x->at, 4096, x->a);
    works(x, x->a);
    gives(x, x->at);
    if (ordered) edge(x, x->a, x->b);
    takes(x, x->at + 2048, 512, x->b);
}

/* Its own stream needs no wait; a stream that it was recorded for does. */
CASE(block_recorded_for_another_stream)
{
    takes(x, x->at, 4096, x->a);
    works(x, x->a);
    if (!ordered) tell(x, TA_EVENT_RECORD_STREAM, x->at, 4096, x->b);
    works(x, x->b);
    gives(x, x->at);
    takes(x, x->at, 4096, x->a);
}

CASE(recorded_block_waited_for)
{
    takes(x, x->at, 4096, x->a);
    works(x, x->a);
    works(x, x->b);
    tell(x, TA_EVENT_RECORD_STREAM, x->at, 4096, x->b);
    tell(x, TA_EVENT_FREE, x->at, 0, NULL);
    if (ordered) host_waits(x, x->b);
    tell(x, TA_EVENT_FREE_DONE, x->at, 0, NULL);
    takes(x, x->at, 4096, x->a);
}

/* Work that comes after the free is nobody's concern. */
TEST(work_after_the_free)
{
    bench x = set_up();
    takes(&x, x.at, 4096, x.a);
    works(&x, x.a);
    gives(&x, x.at);
    host_waits(&x, x.a);
    works(&x, x.a);
    takes(&x, x.at, 4096, x.b);
    gives(&x, x.at);
    CHECK_EQ(violations(&x), 0);
    ta_sim_destroy(x.sim);
}

/* a -> b (ordered) -> c, where c waited for nobody: b's block was never used. */
CASE(order_is_inherited)
{
    ta_stream c;
    ta_sim_stream_create(x->sim, 0, false, &c);
    takes(x, x->at, 4096, x->a);
    works(x, x->a);
    gives(x, x->at);
    edge(x, x->a, x->b);
    takes(x, x->at, 4096, x->b);
    gives(x, x->at);
    if (ordered) edge(x, x->b, c);
    takes(x, x->at, 4096, c);
}

/* The remedy for memory freed on one stream and used on another: only a part is reused,
 * the rest later. */
CASE(the_rest_of_a_block)
{
    takes(x, x->at, 8192, x->a);
    works(x, x->a);
    gives(x, x->at);
    takes(x, x->at, 4096, x->a);
    if (ordered) edge(x, x->a, x->b);
    takes(x, x->at + 4096, 4096, x->b);
}

CASE(blocks_on_top_of_each_other)
{
    takes(x, x->at, 4096, x->a);
    takes(x, ordered ? x->at + 4096 : x->at + 3584, 4096, x->a);
}

CASE(block_before_its_free_is_done)
{
    takes(x, x->at, 4096, x->a);
    tell(x, TA_EVENT_FREE, x->at, 0, NULL);
    if (ordered) tell(x, TA_EVENT_FREE_DONE, x->at, 0, NULL);
    takes(x, x->at, 4096, x->a);
}

CASE(unmap_of_a_freed_block)
{
    takes(x, x->at, 4096, x->a);
    works(x, x->a);
    gives(x, x->at);
    if (ordered) host_waits(x, x->a);
    x->d->unmap(x->sim, x->at, P2);
}

CASE(unmap_of_a_recorded_block)
{
    takes(x, x->at, 4096, x->a);
    tell(x, TA_EVENT_RECORD_STREAM, x->at, 4096, x->b);
    works(x, x->b);
    gives(x, x->at);
    host_waits(x, x->a);
    if (ordered) host_waits(x, x->b);
    x->d->unmap(x->sim, x->at, P2);
}

CASE(unmap_under_a_live_block)
{
    takes(x, x->at + P2 - 512, 1024, x->a);
    if (ordered) gives(x, x->at + P2 - 512);
    x->d->unmap(x->sim, x->at + P2, P2);
}

/* The end of an allocator that has live blocks: it need not free, but it must wait. */
CASE(live_blocks_at_the_end)
{
    takes(x, x->at, 4096, x->a);
    tell(x, TA_EVENT_RECORD_STREAM, x->at, 4096, x->b);
    works(x, x->b);
    ta_oracle_end(x->sim);
    if (ordered) x->d->device_wait(x->sim, 0);
    x->d->unmap(x->sim, x->at, P2);
}

/* A block that moves: allowed when asked for, once its work is seen done. */
CASE(live_block_moves)
{
    ta_oracle_allow_moves(x->sim, true);
    takes(x, x->at, 4096, x->a);
    works(x, x->a);
    if (ordered) x->d->device_wait(x->sim, 0);
    x->d->unmap(x->sim, x->at, P2);
}

/* --- blocks of graphs ---------------------------------------------------------------- */
/* A graph with one block of its own, freed before the capture ends, as most are. */
static ta_sim_graph *graph_with_block(bench *x, uint64_t addr, uint64_t size)
{
    ta_sim_graph *graph = NULL;
    ta_sim_capture_begin(x->sim, 0, x->a);
    takes(x, addr, size, x->a);
    works(x, x->a);
    gives(x, addr);
    ta_sim_capture_end(x->sim, 0, x->a, &graph);
    return graph;
}

CASE(graph_block_reused_by_others)
{
    ta_sim_graph *graph = graph_with_block(x, x->at, 4096);
    ta_sim_graph_launch(x->sim, graph, 0, x->a);
    ta_sim_graph_destroy(x->sim, graph);
    if (ordered) edge(x, x->a, x->b);
    takes(x, x->at, 4096, x->b);
}

CASE(graph_block_unmapped_after_launch)
{
    ta_sim_graph *graph = graph_with_block(x, x->at, 4096);
    ta_sim_graph_launch(x->sim, graph, 0, x->a);
    ta_sim_graph_destroy(x->sim, graph);
    if (ordered) host_waits(x, x->a);
    x->d->unmap(x->sim, x->at, P2);
}

CASE(graph_launched_after_unmap)
{
    ta_sim_graph *graph = graph_with_block(x, x->at, 4096);
    x->d->unmap(x->sim, ordered ? x->at + P2 : x->at, P2);
    ta_sim_graph_launch(x->sim, graph, 0, x->a);
    ta_sim_graph_destroy(x->sim, graph);
}

CASE(graph_launched_over_an_intruder)
{
    ta_sim_graph *graph = graph_with_block(x, x->at, 4096);
    takes(x, x->at, 512, x->a);
    if (ordered) gives(x, x->at);
    ta_sim_graph_launch(x->sim, graph, 0, x->a);
    ta_sim_graph_destroy(x->sim, graph);
}

CASE(block_reused_within_a_capture)
{
    ta_sim_graph *graph = NULL;
    ta_sim_capture_begin(x->sim, 0, x->a);
    takes(x, x->at, 4096, x->a);
    edge(x, x->a, x->b);
    works(x, x->a);
    gives(x, x->at);
    if (ordered) edge(x, x->a, x->b);
    takes(x, x->at, 4096, x->b);
    works(x, x->b);
    edge(x, x->b, x->a);
    ta_sim_capture_end(x->sim, 0, x->a, &graph);
    gives(x, x->at);
    ta_sim_graph_destroy(x->sim, graph);
}

/* Two graphs of one pool share bytes: fine one after the other. */
CASE(graphs_of_one_pool)
{
    ta_sim_graph *first = graph_with_block(x, x->at, 4096);
    ta_sim_graph *second = graph_with_block(x, x->at + 2048, 4096);
    ta_sim_graph_launch(x->sim, first, 0, x->a);
    if (ordered) edge(x, x->a, x->b);
    ta_sim_graph_launch(x->sim, second, 0, x->b);
    ta_sim_graph_destroy(x->sim, first);
    ta_sim_graph_destroy(x->sim, second);
}

/* Launched on a stream that is not ordered after the one it was captured on, where other
 * work was queued before and after, as seeds of random numbers are: its own blocks, freed
 * while the next graph is captured, are no matter; what an ordinary block left there is. */
CASE(graph_launched_on_another_stream)
{
    if (!ordered) takes(x, x->at, 4096, x->a);
    works(x, x->a);
    if (!ordered) gives(x, x->at);
    ta_sim_graph *first = NULL, *second = NULL;
    ta_sim_capture_begin(x->sim, 0, x->a);
    takes(x, x->at, 4096, x->a);
    ta_sim_capture_end(x->sim, 0, x->a, &first);
    works(x, x->a);
    ta_sim_capture_begin(x->sim, 0, x->a);
    gives(x, x->at);
    ta_sim_capture_end(x->sim, 0, x->a, &second);
    ta_sim_graph_launch(x->sim, first, 0, x->b);
    ta_sim_graph_destroy(x->sim, first);
    ta_sim_graph_destroy(x->sim, second);
}

/* What a pool's block left that was warmed up outside of captures is no matter either: the
 * program orders what it launches in that pool. */
CASE(graph_over_what_was_warmed_up)
{
    ta_event_info event = {.kind = TA_EVENT_ALLOC, .stream = x->a, .addr = x->at};
    event.size = 4096;
    event.pooled = ordered;
    ta_oracle_observe(x->sim, &event);
    works(x, x->a);
    gives(x, x->at);
    ta_sim_graph *graph = graph_with_block(x, x->at, 4096);
    ta_sim_graph_launch(x->sim, graph, 0, x->b);
    ta_sim_graph_destroy(x->sim, graph);
}

/* What was queued beside the graph on its stream may touch its blocks while they live. */
CASE(graph_block_unmapped_after_other_work)
{
    ta_sim_graph *graph = NULL;
    ta_sim_capture_begin(x->sim, 0, x->a);
    takes(x, x->at, 4096, x->a);
    ta_sim_capture_end(x->sim, 0, x->a, &graph);
    works(x, x->a);
    gives(x, x->at);
    ta_sim_graph_destroy(x->sim, graph);
    if (ordered) host_waits(x, x->a);
    x->d->unmap(x->sim, x->at, P2);
}

/* A graph's output outlives the capture and is freed on the eager stream. */
TEST(graph_output)
{
    bench x = set_up();
    ta_sim_graph *graph = NULL;
    ta_sim_capture_begin(x.sim, 0, x.a);
    takes(&x, x.at, 4096, x.a);
    works(&x, x.a);
    ta_sim_capture_end(x.sim, 0, x.a, &graph);
    for (int i = 0; i < 10; i++) ta_sim_graph_launch(x.sim, graph, 0, x.a);
    works(&x, x.a);
    ta_sim_graph_destroy(x.sim, graph);
    gives(&x, x.at);
    CHECK_EQ(violations(&x), 0);
    x.d->unmap(x.sim, x.at, P2);
    CHECK_EQ(violations(&x), 2); /* the last launch, and the work behind it */
    ta_sim_destroy(x.sim);
}

/* --- its own weight ------------------------------------------------------------------ */
/* Random right programs are clean; a single lost edge in one of them is not. */
static uint64_t random_program(unsigned seed, bool lose_edges)
{
    bench x = set_up();
    ta_stream streams[] = {x.a, x.b, NULL};
    int owner[64] = {0}; /* the stream that touched this piece last */
    unsigned r = seed * 2654435761u + 1;
    for (int i = 0; i < 4000; i++) {
        r = r * 1664525 + 1013904223;
        const int piece = (int)(r >> 26), s = (int)(r >> 16 & 0xff) % COUNT(streams);
        const uint64_t addr = x.at + (uint64_t)piece * 4096;
        if (owner[piece] != s && !lose_edges) edge(&x, streams[owner[piece]], streams[s]);
        if (r & 4096)
            writes(&x, streams[s], addr, 4096);
        else
            reads(&x, streams[s], addr, 2048);
        owner[piece] = s;
    }
    const uint64_t count = violations(&x);
    ta_sim_destroy(x.sim);
    return count;
}

TEST(random_programs)
{
    for (unsigned seed = 0; seed < 10; seed++) {
        CHECK_EQ(random_program(seed, false), 0);
        CHECK(random_program(seed, true) > 0);
    }
}

TEST(the_first_violation_is_kept)
{
    bench x = set_up();
    CHECK(ta_sim_first_violation(x.sim, NULL) == NULL);
    writes(&x, x.a, x.at, 64);
    writes(&x, x.b, x.at, 64);
    const char *first = ta_sim_first_violation(x.sim, NULL);
    char kept[200];
    CHECK(first != NULL);
    snprintf(kept, sizeof kept, "%s", first);
    CHECK(strstr(kept, "not ordered after item 1") != NULL);
    writes(&x, x.a, x.at + 64, 64);
    writes(&x, x.b, x.at + 64, 64);
    CHECK_EQ(violations(&x), 2);
    CHECK_STR(ta_sim_first_violation(x.sim, NULL), kept);
    ta_sim_destroy(x.sim);
}

TEST_MAIN()
