// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tables of operations. An endpoint and a completion queue begin with a pointer to their table, as libfabric's objects
//! do. The table is chosen from provider, threading and options when the endpoint is enabled or the queue is opened. An
//! exported function loads the entry and jumps to it.
//!
//! Entries are `extern "C"` and have the parameters of the exported function, so that the call is one jump and every
//! argument stays where it is. Each entry catches its panics by `guard::hold`, because no Rust caller above the entry
//! would.

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
/// Makes progress once, and writes up to `most` arrivals into the caller's array instead of the completion queue, which is
/// empty. A negative result: nothing was done, and the caller is to use `progress`.
pub type Arrive = unsafe fn(*const EpHead, &Queue, *mut c_void, usize) -> isize;

/// gdrfab_cq_read() of an empty queue that has one endpoint; the function ends the call.
pub type ReadSole = unsafe extern "C" fn(*const CqHead, *mut c_void, usize, *const EpHead) -> isize;

/// The two functions by which arrivals reach the reader without passing through the queue, for one format of entries.
/// Both serve domains without locks only.
#[derive(Clone, Copy)]
pub struct Arrivals {
    pub sole: ReadSole,
    pub turn: Arrive,
}

/// The operations of an endpoint.
///
/// # Safety
/// The caller of an entry promises that the endpoint is open, that the buffer is as the C caller promised for the operation,
/// and, if the domain was opened without locks, that no other call on the domain overlaps.
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
    /// By format of entries: the functions by which arrivals bypass the queue, if they can.
    pub arrive: Option<[Arrivals; 4]>,
}

/// The process that opened a handle. A forked child may not use it, because two processes cannot own one ring or key.
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
        Error::new(errno::EPERM, format!("this handle was opened by process {}; a forked child must open its own", self.id))
    }
}

/// The values that a provider sets in an endpoint's head when the endpoint is enabled. The pointers stay valid as long as the
/// endpoint.
pub struct Dispatch {
    pub ops: &'static EpOps,
    /// Data for the provider's entries; only they use it.
    pub of: *const (),
    /// The completion queue of transmits, or NULL, for entries that would otherwise find it through `of`. Each pointer that
    /// must be followed to the place of an entry delays this operation and the next.
    pub tx: *const Queue,
}

/// The flags of operations posted by calls that have no parameter for flags.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpFlags {
    pub tx: u64,
    pub rx: u64,
}

/// The beginning of an endpoint, and what its handle points to.
#[repr(C)]
pub struct EpHead {
    ops: AtomicPtr<EpOps>,
    of: AtomicPtr<()>,
    tx: AtomicPtr<Queue>,
    owner: Owner,
    op_flags: OpFlags,
}

impl EpHead {
    /// The head of an endpoint that is not enabled yet. Until `enable`, calls go to the entries of `ops`, which return
    /// the error.
    pub fn new(ops: &'static EpOps, owner: Owner, op_flags: OpFlags) -> EpHead {
        EpHead { ops: AtomicPtr::new((&raw const *ops).cast_mut()), of: AtomicPtr::default(), tx: AtomicPtr::default(), owner, op_flags }
    }

    #[inline(always)]
    pub fn ops(&self) -> &'static EpOps {
        // SAFETY: `new` and `enable` store tables that live as long as the library.
        unsafe { &*self.ops.load(Ordering::Relaxed) }
    }

    /// Makes this the table of operations.
    pub fn enable(&self, Dispatch { ops, of, tx }: Dispatch) {
        self.of.store(of.cast_mut(), Ordering::Relaxed);
        self.tx.store(tx.cast_mut(), Ordering::Relaxed);
        self.ops.store((&raw const *ops).cast_mut(), Ordering::Release);
    }

    /// The provider's data (`Dispatch::of`), which lives as long as the endpoint.
    #[inline(always)]
    pub fn of(&self) -> *const () {
        self.of.load(Ordering::Relaxed)
    }

    /// The completion queue of transmits, or NULL (`Dispatch::tx`).
    #[inline(always)]
    pub fn tx(&self) -> *const Queue {
        self.tx.load(Ordering::Relaxed)
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// True if this process is the one that opened the endpoint.
    #[inline(always)]
    pub fn is_here(&self) -> bool {
        self.owner.is_here()
    }

    #[inline(always)]
    pub fn op_flags(&self) -> OpFlags {
        self.op_flags
    }

    /// The flags of sends, RMA and atomics that are posted without flags.
    #[inline(always)]
    pub fn tx_op_flags(&self) -> u64 {
        self.op_flags.tx
    }
}

/// The format of a completion queue's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqFormat {
    Context,
    Msg,
    Data,
    Tagged,
}

/// An entry in the layout of its C structure; `capi` exports the structures under their C names.
pub trait CqEntry: Sized {
    const FORMAT: CqFormat;
    fn from_completion(c: &Completion) -> Self;

    /// Writes entry `i` of the caller's array.
    ///
    /// # Safety
    /// `buf` holds more than `i` entries.
    #[inline(always)]
    unsafe fn put(buf: *mut c_void, i: usize, c: &Completion) {
        // SAFETY: the caller promises that the array has more than `i` entries.
        unsafe { buf.cast::<Self>().add(i).write_unaligned(Self::from_completion(c)) }
    }

    /// As `put`, with the entry's origin, from which a format with tags takes the tag.
    ///
    /// # Safety
    /// As for `put`.
    #[inline(always)]
    unsafe fn put_from(buf: *mut c_void, i: usize, c: &Completion, _from: Origin) {
        // SAFETY: the caller promises that the array has more than `i` entries.
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

impl CqEntry for ContextEntry {
    const FORMAT: CqFormat = CqFormat::Context;
    #[inline(always)]
    fn from_completion(c: &Completion) -> Self {
        ContextEntry { context: c.context }
    }
}

impl CqEntry for MsgEntry {
    const FORMAT: CqFormat = CqFormat::Msg;
    #[inline(always)]
    fn from_completion(c: &Completion) -> Self {
        MsgEntry { context: c.context, flags: c.flags, len: c.len }
    }
}

impl CqEntry for DataEntry {
    const FORMAT: CqFormat = CqFormat::Data;
    #[inline(always)]
    fn from_completion(c: &Completion) -> Self {
        DataEntry { context: c.context, flags: c.flags, len: c.len, buf: c.buf, data: c.data }
    }
}

/// The tag comes from the entry's origin ([`put_from`]); without an origin it is 0.
impl CqEntry for TaggedEntry {
    const FORMAT: CqFormat = CqFormat::Tagged;
    #[inline(always)]
    fn from_completion(c: &Completion) -> Self {
        TaggedEntry { data: DataEntry::from_completion(c), tag: 0 }
    }

    #[inline(always)]
    unsafe fn put_from(buf: *mut c_void, i: usize, c: &Completion, from: Origin) {
        // SAFETY: the caller promises that the array has more than `i` entries.
        unsafe { buf.cast::<Self>().add(i).write_unaligned(TaggedEntry { data: DataEntry::from_completion(c), tag: from.tag }) }
    }
}

/// As `put`, with the tag if the format has one.
///
/// # Safety
/// As for `put`.
#[inline]
pub unsafe fn put_from(format: CqFormat, buf: *mut c_void, i: usize, c: &Completion, tag: u64) {
    // SAFETY: the caller promises that the array has more than `i` entries.
    unsafe {
        match format {
            CqFormat::Tagged => TaggedEntry::put_from(buf, i, c, Origin { tag, ..Origin::NONE }),
            other => put(other, buf, i, c),
        }
    }
}

/// As `E::put`, for a format that is only known at run time.
///
/// # Safety
/// As for `put`.
#[inline(always)]
pub unsafe fn put(format: CqFormat, buf: *mut c_void, i: usize, c: &Completion) {
    // SAFETY: the caller promises that the array has more than `i` entries.
    unsafe {
        match format {
            CqFormat::Context => ContextEntry::put(buf, i, c),
            CqFormat::Msg => MsgEntry::put(buf, i, c),
            CqFormat::Data => DataEntry::put(buf, i, c),
            CqFormat::Tagged => TaggedEntry::put(buf, i, c),
        }
    }
}

/// gdrfab_cq_read(): queue, array, the number of entries that the array holds. The array may be NULL.
pub type Read = unsafe extern "C" fn(*const CqHead, *mut c_void, usize) -> isize;

/// The operations of a completion queue.
///
/// # Safety
/// The caller of an entry promises that the queue is open, that the array is as the C caller promised, and, if the domain was
/// opened without locks, that no other call on the domain overlaps.
pub struct CqOps {
    pub read: Read,
}

/// The functions to which the entry of a source passes a call that it does not end itself.
pub struct CqFallback {
    /// The source has given this many entries, which are the result, but the endpoints are due for progress.
    pub due: Read,
    /// The source has nothing: makes progress on the endpoints, and looks into the queue.
    pub after: Read,
    /// All other cases.
    pub queue: Read,
}

/// The beginning of a completion queue, and what its handle points to.
#[repr(C)]
pub struct CqHead {
    pub ops: &'static CqOps,
    /// The data that the source gave with its table, which lives as long as the queue.
    pub of: *const (),
    pub rest: &'static CqFallback,
    /// The queue, which lives as long as this head.
    pub queue: *const Queue,
}

// SAFETY: `of` points to data of a source, which any thread may use.
unsafe impl Send for CqHead {}
// SAFETY: `of` points to data of a source, which any thread may use.
unsafe impl Sync for CqHead {}
