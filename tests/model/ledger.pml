/* ledger.pml - csrc/core/ledger/ledger.c as a model, for spin.
 *
 *     spin -DKILLS=3 -a ledger.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m200000
 *
 * PROCESSES share a GPU of CAP units through SLOTS slots. Each step that another process can
 * see is one of the model's; STEP is where a process may be killed, and stands under the
 * name that ledger.c gives the same moment to its tests. Who is killed begins anew, as some
 * other process would. Kills are bounded, so that the states are finite. Checked at every
 * state: what the processes really hold of the GPU never exceeds the cap; and whenever the
 * growth lock is free, neither does the sum over slots whose owners live. */
#define PROCESSES 3
#define SLOTS 2
#define CAP 2
#ifndef KILLS
#define KILLS 1
#endif

byte growth;          /* who holds the lock on the growth byte: number + 1; 0: nobody */
byte slot[SLOTS];     /* who holds the lock on the slot's byte */
byte word[SLOTS];     /* what the file says */
byte gpu[PROCESSES];  /* what each really holds */
byte kills;

/* The kernel drops the locks, and the driver takes the memory back. */
inline killed()
{
    d_step {
        kills++;
        if :: growth == me + 1 -> growth = 0 :: else fi;
        i = 0;
        do
        :: i < SLOTS ->
            if :: slot[i] == me + 1 -> slot[i] = 0 :: else fi;
            i++
        :: else -> break
        od;
        gpu[me] = 0; held = 0; i = 0; sum = 0
    }
}

#define STEP(name) if :: skip :: kills < KILLS -> killed(); goto begin fi

/* take(): the lock is asked for again and again; a killed holder's is free. */
inline take() { atomic { growth == 0 -> growth = me + 1 }; STEP("locked") }
inline drop() { STEP("before unlock"); growth = 0 }

/* ta_ledger_pread of all words: one after the other, as the kernel may copy them. */
inline read_words()
{
    sum = 0; i = 0;
    do
    :: i < SLOTS -> sum = sum + word[i]; i++
    :: else -> break
    od;
    STEP("read")
}

/* sweep(): a slot that can be locked is nobody's, since no one claims under our lock. */
inline sweep()
{
    i = 0;
    do
    :: i < SLOTS ->
        if
        :: i != mine && word[i] > 0 ->
            if
            :: atomic { slot[i] == 0 -> slot[i] = me + 1 };
                STEP("sweeping");
                word[i] = 0;
                STEP("swept");
                slot[i] = 0
            :: slot[i] != 0 -> skip
            fi
        :: else -> skip
        fi;
        i++
    :: else -> break
    od
}

proctype process(byte me)
{
    byte mine, held, sum, i;
begin:
    /* claim() */
    take();
    mine = 0;
    do
    :: mine == SLOTS -> break
    :: mine < SLOTS ->
        if
        :: atomic { slot[mine] == 0 -> slot[mine] = me + 1 }; break
        :: slot[mine] != 0 -> mine++
        fi
    od;
    STEP("slot locked");
    if
    :: mine == SLOTS -> drop(); goto begin /* every slot is taken */
    :: else -> word[mine] = 0
    fi;
    STEP("slot written");
    drop();
    do
    :: /* ta_ledger_reserve() */
        take();
        read_words();
        if
        :: sum + 1 > CAP -> sweep(); read_words()
        :: else -> skip
        fi;
        if
        :: sum + 1 <= CAP ->
            STEP("before growth");
            word[mine] = held + 1;
            STEP("grown");
            held++;
            drop();
            /* only now is the driver asked, and may refuse */
            if :: gpu[me] = gpu[me] + 1 :: skip fi
        :: else -> drop()
        fi
    :: gpu[me] > 0 && gpu[me] == held -> /* the driver takes it back */
        gpu[me] = gpu[me] - 1
    :: held > gpu[me] -> /* ta_ledger_release(), of what the driver took or never gave */
        STEP("before release");
        held--;
        word[mine] = held;
        STEP("released")
    :: gpu[me] == 0 -> /* ta_ledger_leave(), which writes nothing */
        held = 0;
        slot[mine] = 0;
        goto begin
    od
}

/* Both invariants, at every state. */
active proctype monitor()
{
    byte i, all, living;
    do
    :: d_step {
        all = 0; living = 0; i = 0;
        do
        :: i < PROCESSES -> all = all + gpu[i]; i++
        :: else -> break
        od;
        assert(all <= CAP);
        i = 0;
        do
        :: i < SLOTS ->
            if :: slot[i] != 0 -> living = living + word[i] :: else fi;
            i++
        :: else -> break
        od;
        assert(growth != 0 || living <= CAP);
        i = 0; all = 0; living = 0
    }
    od
}

init
{
    atomic { run process(0); run process(1); run process(2) }
}
