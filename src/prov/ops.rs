// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of operations. An endpoint and a completion queue begin with a pointer to theirs, as libfabric's objects do:
//! it is chosen once, when the endpoint is enabled or the queue opened, from provider, threading and options. An exported
//! function loads the entry and jumps.
//!
//! Entries are `extern "C"` with the parameters of the exported function, so that the call is one jump with every argument
//! where it lies already; and what they do, they do inside of `guard::hold`, because nobody above them would.

use super::queue::{Completion, Origin, Queue};
use crate::error::{Error, Result, errno};
use crate::sys::process;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// gdrfab_write() and gdrfab_read(): endpoint, buffer, length, descriptor, peer, remote address, key, context.
pub type Rma = unsafe extern "C" fn(*const EpHead, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize;
/// gdrfab_inject_write(): endpoint, buffer, length, peer, remote address, key.
pub type InjectWrite = unsafe extern "C" fn(*const EpHead, *mut c_void, usize, u64, u64, u64) -> isize;
/// gdrfab_send() and gdrfab_recv(): endpoint, buffer, length, descriptor, peer, context.
pub type Message = unsafe extern "C" fn(*const EpHead, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize;
/// gdrfab_inject(): endpoint, buffer, length, peer.
pub type Inject = unsafe extern "C" fn(*const EpHead, *mut c_void, usize, u64) -> isize;
/// gdrfab_tsend(): endpoint, buffer, length, descriptor, peer, tag, context.
pub type Tagged = unsafe extern "C" fn(*const EpHead, *mut c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize;
/// gdrfab_tinject(): endpoint, buffer, length, peer, tag.
pub type InjectTagged = unsafe extern "C" fn(*const EpHead, *mut c_void, usize, u64, u64) -> isize;
/// gdrfab_tsenddata(): endpoint, buffer, length, descriptor, data, peer, tag, context.
pub type TaggedData = unsafe extern "C" fn(*const EpHead, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize;
/// gdrfab_tinjectdata(): endpoint, buffer, length, data, peer, tag.
pub type InjectTaggedData = unsafe extern "C" fn(*const EpHead, *mut c_void, usize, u64, u64, u64) -> isize;
/// gdrfab_trecv(): endpoint, buffer, length, descriptor, peer, tag, ignored bits, context.
pub type RecvTagged = unsafe extern "C" fn(*const EpHead, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize;
/// A turn of progress that writes up to `most` arrivals into the caller's array instead of the empty queue. Negative: nothing
/// was done, and `progress` is to be called.
pub type Arrive = unsafe fn(*const EpHead, &Queue, *mut c_void, usize) -> isize;

/// gdrfab_cq_read() of an empty queue, of which this is the only endpoint; it ends the call.
pub type ReadSole = unsafe extern "C" fn(*const CqHead, *mut c_void, usize, *const EpHead) -> isize;

/// How arrivals go straight to the reader of a queue without locks, in one format.
#[derive(Clone, Copy)]
pub struct Arrivals {
    pub sole: ReadSole,
    pub turn: Arrive,
}

/// Operations of an endpoint.
///
/// # Safety
/// Of every entry: the endpoint is open, the buffer is as the C caller promised for the operation, and no other call on
/// the domain overlaps where it was opened without locks.
pub struct EpOps {
    pub write: Rma,
    pub read: Rma,
    pub inject_write: InjectWrite,
    pub send: Message,
    pub inject: Inject,
    pub recv: Message,
    pub tsend: Tagged,
    pub tinject: InjectTagged,
    pub tsenddata: TaggedData,
    pub tinjectdata: InjectTaggedData,
    pub trecv: RecvTagged,
    /// By format, where arrivals can go straight to the reader of a queue without locks.
    pub arrive: Option<[Arrivals; 4]>,
}

/// Handles belong to the process that opened them: rings and keys cannot have two owners.
#[derive(Clone, Copy)]
pub struct Owner {
    word: &'static AtomicU64,
    id: u64,
}

impl Owner {
    pub fn here() -> Owner {
        let word = process::instance();
        Owner { word, id: word.load(Ordering::Relaxed) }
    }

    #[inline]
    pub fn check(self) -> Result<()> {
        if self.is_here() { Ok(()) } else { Err(self.foreign()) }
    }

    #[inline(always)]
    pub fn is_here(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.id
    }

    #[cold]
    fn foreign(self) -> Error {
        Error::new(errno::EPERM, format!("this handle was opened by process {}; a fork's child opens its own", self.id))
    }
}

/// What an endpoint's head gets when it is enabled. What is pointed to lives as long as the endpoint.
pub struct Dispatch {
    pub ops: &'static EpOps,
    /// For the provider's entries alone.
    pub of: *const (),
    /// The queue of what is sent, for entries that would have to look for it behind `of`; or NULL. An operation waits for each
    /// pointer on the way to its completion's place, and the next operation for that.
    pub tx: *const Queue,
}

/// Flags of calls that take none.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpFlags {
    pub tx: u64,
    pub rx: u64,
}

/// What an endpoint begins with.
#[repr(C)]
pub struct EpHead {
    ops: AtomicPtr<EpOps>,
    of: AtomicPtr<()>,
    tx: AtomicPtr<Queue>,
    owner: Owner,
    op_flags: OpFlags,
}

impl EpHead {
    /// An endpoint's that is not enabled yet. Its table, until then, says what is wrong.
    pub fn new(ops: &'static EpOps, owner: Owner, op_flags: OpFlags) -> EpHead {
        EpHead { ops: AtomicPtr::new((&raw const *ops).cast_mut()), of: AtomicPtr::default(), tx: AtomicPtr::default(), owner, op_flags }
    }

    #[inline(always)]
    pub fn ops(&self) -> &'static EpOps {
        // SAFETY: `new` and `enable` store tables that live as long as the library.
        unsafe { &*self.ops.load(Ordering::Relaxed) }
    }

    /// From now on operations go by this table.
    pub fn enable(&self, Dispatch { ops, of, tx }: Dispatch) {
        self.of.store(of.cast_mut(), Ordering::Relaxed);
        self.tx.store(tx.cast_mut(), Ordering::Relaxed);
        self.ops.store((&raw const *ops).cast_mut(), Ordering::Release);
    }

    /// What the provider gave with its table, which lives as long as the endpoint.
    #[inline(always)]
    pub fn of(&self) -> *const () {
        self.of.load(Ordering::Relaxed)
    }

    /// As `of`.
    #[inline(always)]
    pub fn tx(&self) -> *const Queue {
        self.tx.load(Ordering::Relaxed)
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Whether the process is still the one that opened the endpoint.
    #[inline(always)]
    pub fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    #[inline(always)]
    pub fn op_flags(&self) -> OpFlags {
        self.op_flags
    }

    /// Of sends, RMA and atomics.
    #[inline(always)]
    pub fn tx_op_flags(&self) -> u64 {
        self.op_flags.tx
    }
}

/// Shape of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqFormat {
    Context,
    Msg,
    Data,
    Tagged,
}

/// An entry as the C caller gets it; the border has them under their names there.
pub trait Entry: Sized {
    const FORMAT: CqFormat;
    fn of(c: &Completion) -> Self;

    /// Writes entry `i` of the caller's array.
    ///
    /// # Safety
    /// `buf` holds more than `i` entries.
    #[inline(always)]
    unsafe fn put(buf: *mut c_void, i: usize, c: &Completion) {
        // SAFETY: the caller says that the array has more than `i` entries.
        unsafe { buf.cast::<Self>().add(i).write_unaligned(Self::of(c)) }
    }

    /// As `put`, of an entry that came from there.
    ///
    /// # Safety
    /// As for `put`.
    #[inline(always)]
    unsafe fn put_from(buf: *mut c_void, i: usize, c: &Completion, _from: Origin) {
        // SAFETY: the caller says that the array has more than `i` entries.
        unsafe { Self::put(buf, i, c) }
    }
}

#[repr(C)]
pub struct ContextEntry {
    pub context: usize,
}

#[repr(C)]
pub struct MsgEntry {
    pub context: usize,
    pub flags: u64,
    pub len: usize,
}

#[repr(C)]
pub struct DataEntry {
    pub context: usize,
    pub flags: u64,
    pub len: usize,
    pub buf: usize,
    pub data: u64,
}

#[repr(C)]
pub struct TaggedEntry {
    pub data: DataEntry,
    pub tag: u64,
}

impl Entry for ContextEntry {
    const FORMAT: CqFormat = CqFormat::Context;
    #[inline(always)]
    fn of(c: &Completion) -> Self {
        ContextEntry { context: c.context }
    }
}

impl Entry for MsgEntry {
    const FORMAT: CqFormat = CqFormat::Msg;
    #[inline(always)]
    fn of(c: &Completion) -> Self {
        MsgEntry { context: c.context, flags: c.flags, len: c.len }
    }
}

impl Entry for DataEntry {
    const FORMAT: CqFormat = CqFormat::Data;
    #[inline(always)]
    fn of(c: &Completion) -> Self {
        DataEntry { context: c.context, flags: c.flags, len: c.len, buf: c.buf, data: c.data }
    }
}

/// Tags come with the origins of entries ([`put_from`]); without, they are 0.
impl Entry for TaggedEntry {
    const FORMAT: CqFormat = CqFormat::Tagged;
    #[inline(always)]
    fn of(c: &Completion) -> Self {
        TaggedEntry { data: DataEntry::of(c), tag: 0 }
    }

    #[inline(always)]
    unsafe fn put_from(buf: *mut c_void, i: usize, c: &Completion, from: Origin) {
        // SAFETY: the caller says that the array has more than `i` entries.
        unsafe { buf.cast::<Self>().add(i).write_unaligned(TaggedEntry { data: DataEntry::of(c), tag: from.tag }) }
    }
}

/// As `put`, with the tag if the format has one.
///
/// # Safety
/// As for `put`.
#[inline]
pub unsafe fn put_from(format: CqFormat, buf: *mut c_void, i: usize, c: &Completion, tag: u64) {
    // SAFETY: the caller says that the array has more than `i` entries.
    unsafe {
        match format {
            CqFormat::Tagged => TaggedEntry::put_from(buf, i, c, Origin { tag, ..Origin::NONE }),
            other => put(other, buf, i, c),
        }
    }
}

/// As `E::put` for a format that is known when running.
///
/// # Safety
/// As for `put`.
#[inline(always)]
pub unsafe fn put(format: CqFormat, buf: *mut c_void, i: usize, c: &Completion) {
    // SAFETY: the caller says that the array has more than `i` entries.
    unsafe {
        match format {
            CqFormat::Context => ContextEntry::put(buf, i, c),
            CqFormat::Msg => MsgEntry::put(buf, i, c),
            CqFormat::Data => DataEntry::put(buf, i, c),
            CqFormat::Tagged => TaggedEntry::put(buf, i, c),
        }
    }
}

/// gdrfab_cq_read(): queue, array, entries that it holds. The array may be NULL.
pub type Read = unsafe extern "C" fn(*const CqHead, *mut c_void, usize) -> isize;

/// Operations of a completion queue.
///
/// # Safety
/// Of every entry: the queue is open, the array is as the C caller promised, and no other call on the domain overlaps where
/// it was opened without locks.
pub struct CqOps {
    pub read: Read,
}

/// What the entry of a source goes on with, where it does not end the call itself.
pub struct CqFallback {
    /// The endpoints' turn has come, though the source has given so many entries: these are the result.
    pub due: Read,
    /// The source has nothing: the endpoints' turn, and a look into the queue.
    pub after: Read,
    /// Everything else.
    pub queue: Read,
}

/// What a completion queue begins with.
#[repr(C)]
pub struct CqHead {
    pub ops: &'static CqOps,
    /// What the source gave with its table, which lives as long as the queue.
    pub of: *const (),
    pub rest: &'static CqFallback,
    /// The queue itself, which lives as long.
    pub queue: *const Queue,
}

// SAFETY: `of` is a source's, which is free to be used by any thread.
unsafe impl Send for CqHead {}
// SAFETY: as above.
unsafe impl Sync for CqHead {}
