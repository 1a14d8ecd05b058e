/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Helper threads for long messages between memories of the host. NCCL drives all channels of a communicator from one
 * thread, and that thread would do all the copying: over shm the sender's copy, over tcp the system calls that copy
 * on both sides. While a connection has long requests under way, the helpers post and take completions there, and
 * NCCL's thread only asks whether the requests are done. Short messages stay with NCCL's thread, which is faster for
 * them.
 *
 * Each helper serves its share of the connections, and other shares when its own is idle: a collective uses only
 * some of a communicator's channels, and these need not be spread evenly over the shares.
 */
#include "protocol.h"

#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	SLOTS = 1024,	/* connections served at most; NCCL's thread serves any more */
	OWN_TURNS = 8,	/* idle turns on a helper's own share before one look at the others' shares */
	SPINS = 2000,	/* idle turns before a nap: NCCL posts receives long before their data comes */
	NAP_NS = 50000,
};

static struct slot slots[SLOTS];
static int slots_used; /* slots ever used, which come first in the array; atomic */

static sem_t wake;
static int asleep; /* helpers asleep that nobody has woken yet; atomic */
static bool ends;  /* atomic */

/* Protects the start and the end of the threads. */
static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;
static pthread_t threads[MAX_THREADS];
static int threads_count, held; /* threads_count is atomic; `held` counts the connections that have a slot */
static pid_t whose; /* process that started the threads: a child of fork() has its parent's slots, but no threads */

bool help_is_wanted(const struct comm *comm, const struct memory *memory)
{
	enum kind kind = comm->device->ways[comm->way]->kind;
	/* Over shm only the sender copies. */
	bool copies = kind == KIND_TCP || (kind == KIND_SHM && comm->sends);
	return copies && memory->host && comm->device->of->settings.own_threads > 0;
}

/* ---- one helper */

static bool is_active(const struct slot *slot)
{
	return __atomic_load_n(&slot->long_ones, __ATOMIC_SEQ_CST) > 0;
}

/* Serves one connection. Returns whether anything was moved. */
static bool serve(struct slot *slot)
{
	/* Nothing to do, another helper is serving it, or it is about to be closed. */
	if (!is_active(slot) || pthread_mutex_trylock(&slot->lock))
		return false;
	bool moved = slot->comm && verdict_of(slot->comm) == ncclSuccess && progress(slot->comm);
	pthread_mutex_unlock(&slot->lock);
	return moved;
}

static void sleep_until_woken(void)
{
	bool any = false;
	__atomic_add_fetch(&asleep, 1, __ATOMIC_SEQ_CST);
	/* A thread that began a request before `asleep` was raised has woken nobody, so look once more. */
	for (int i = 0, used = __atomic_load_n(&slots_used, __ATOMIC_SEQ_CST); i < used; i++)
		any |= is_active(&slots[i]);
	if (!any && !__atomic_load_n(&ends, __ATOMIC_SEQ_CST))
		sem_wait(&wake);
}

/* Wakes all sleeping helpers without waiting, as NCCL's thread must not wait. A helper that did not sleep after all
 * wakes once for nothing. */
static void wake_all(void)
{
	for (int n = __atomic_exchange_n(&asleep, 0, __ATOMIC_SEQ_CST); n > 0; n--)
		sem_post(&wake);
}

static void *run(void *arg)
{
	int own = (int)(intptr_t)arg, idle = 0;
	pthread_setname_np(pthread_self(), "gdrfab-nccl");
	while (!__atomic_load_n(&ends, __ATOMIC_ACQUIRE)) {
		int used = __atomic_load_n(&slots_used, __ATOMIC_ACQUIRE);
		int step = __atomic_load_n(&threads_count, __ATOMIC_RELAXED);
		bool others = idle % OWN_TURNS == OWN_TURNS - 1, moved = false, any = false;
		for (int i = others ? 0 : own; i < used; i += others ? 1 : step) {
			any |= is_active(&slots[i]);
			moved |= serve(&slots[i]);
		}
		idle = moved ? 0 : idle + 1;
		if (others && !any)
			sleep_until_woken();
		else if (idle > SPINS)
			nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	return NULL;
}

/* ---- start and end of the threads; the caller holds `life` */

/* Blocks all signals for the threads about to be started, which inherit the mask. Signals that an instruction raises
 * stay unblocked: a blocked one would end the process. */
static void take_no_signals(sigset_t *before)
{
	static const int of_instructions[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
	sigset_t all;
	sigfillset(&all);
	for (size_t i = 0; i < sizeof of_instructions / sizeof *of_instructions; i++)
		sigdelset(&all, of_instructions[i]);
	pthread_sigmask(SIG_BLOCK, &all, before);
}

static void begin(int wanted)
{
	sem_init(&wake, 0, 0);
	asleep = 0;
	ends = false;
	/* Set first: each thread computes its share from the count. */
	__atomic_store_n(&threads_count, wanted, __ATOMIC_RELAXED);
	sigset_t before;
	take_no_signals(&before);
	for (int i = 0; i < wanted; i++)
		if (pthread_create(&threads[i], NULL, run, (void *)(intptr_t)i)) {
			INFO("%d threads for long messages, not %d: there are no more", i, wanted);
			__atomic_store_n(&threads_count, i, __ATOMIC_RELAXED);
			break;
		}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void end(void)
{
	__atomic_store_n(&ends, true, __ATOMIC_SEQ_CST);
	wake_all();
	for (int i = 0; i < threads_count; i++)
		pthread_join(threads[i], NULL);
	threads_count = 0;
}

static struct slot *take_slot(struct comm *comm)
{
	int i = 0;
	while (i < SLOTS && slots[i].comm)
		i++;
	if (i == SLOTS)
		return NULL;
	if (i == slots_used) {
		pthread_mutex_init(&slots[i].lock, NULL);
		__atomic_store_n(&slots_used, i + 1, __ATOMIC_SEQ_CST);
	}
	pthread_mutex_lock(&slots[i].lock);
	slots[i].comm = comm;
	pthread_mutex_unlock(&slots[i].lock);
	return &slots[i];
}

static struct slot *join(struct comm *comm)
{
	const struct inventory *it = comm->device->of;
	struct slot *slot = NULL;
	pthread_mutex_lock(&life);
	if (whose != getpid()) {
		memset(slots, 0, sizeof slots);
		slots_used = threads_count = held = 0;
		whose = getpid();
	}
	if (it->pid == whose && !held)
		begin(it->settings.own_threads);
	if (it->pid == whose && threads_count)
		slot = take_slot(comm);
	held += slot != NULL;
	pthread_mutex_unlock(&life);
	return slot;
}

bool help_begin(struct comm *comm)
{
	if (!comm->slot)
		comm->slot = join(comm);
	if (!comm->slot)
		return false;
	__atomic_add_fetch(&comm->slot->long_ones, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&asleep, __ATOMIC_SEQ_CST) > 0)
		wake_all();
	return true;
}

void help_end(struct comm *comm)
{
	struct slot *slot = comm ? comm->slot : NULL;
	if (!slot || comm->device->of->pid != getpid())
		return;
	pthread_mutex_lock(&life);
	/* A helper that is serving the connection ends its turn first. */
	pthread_mutex_lock(&slot->lock);
	slot->comm = NULL;
	__atomic_store_n(&slot->long_ones, 0, __ATOMIC_SEQ_CST);
	pthread_mutex_unlock(&slot->lock);
	if (--held == 0)
		end();
	pthread_mutex_unlock(&life);
	comm->slot = NULL;
}
