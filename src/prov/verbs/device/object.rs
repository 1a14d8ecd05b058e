// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verbs objects with an owner. An object is destroyed when it is dropped, and keeps the object alive from which it was
//! made.

use super::context::{Context, Transport};
use crate::error::{Error, Result, errno};
use crate::prov::verbs::sys::abi::*;
use crate::prov::verbs::sys::library::verbs;
use crate::prov::verbs::sys::status::{call_error, pointer, returned};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Logs the failure of a destructor, because nothing else can be done about the failure.
fn destroyed(result: Result<c_int>, what: &str) {
    if let Err(e) = result.and_then(|rc| returned(rc, what)) {
        crate::log!(Warn, "{e}");
    }
}

macro_rules! owner {
    ($name:ident, $raw:ty, $destroy:ident, $what:literal) => {
        impl $name {
            #[inline(always)]
            pub fn raw(&self) -> *mut $raw {
                self.raw.as_ptr()
            }
        }

        // SAFETY: verbs objects may be used and destroyed from any thread; libibverbs locks.
        unsafe impl Send for $name {}
        // SAFETY: libibverbs locks the calls that several threads may make at once.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by the matching call, and destroyed once, here.
                destroyed(verbs().and_then(|v| unsafe { v.$destroy(self.raw.as_ptr()) }), $what);
            }
        }
    };
}

/// A protection domain.
pub struct Pd {
    raw: NonNull<ibv_pd>,
    pub context: Arc<Context>,
}
owner!(Pd, ibv_pd, ibv_dealloc_pd, "freeing a protection domain");

impl Pd {
    pub fn new(context: Arc<Context>) -> Result<Arc<Pd>> {
        // SAFETY: the context is open.
        let raw = unsafe { verbs()?.ibv_alloc_pd(context.raw())? };
        Ok(Arc::new(Pd { raw: pointer(raw, "allocating a protection domain")?, context }))
    }
}

/// A descriptor that becomes readable when an armed completion queue gets an entry.
pub struct CompChannel {
    raw: NonNull<ibv_comp_channel>,
    _context: Arc<Context>,
}
owner!(CompChannel, ibv_comp_channel, ibv_destroy_comp_channel, "destroying a completion channel");

impl CompChannel {
    pub fn new(context: &Arc<Context>) -> Result<CompChannel> {
        // SAFETY: the context is open.
        let raw = unsafe { verbs()?.ibv_create_comp_channel(context.raw())? };
        let channel = CompChannel { raw: pointer(raw, "creating a completion channel")?, _context: context.clone() };
        rustix::io::ioctl_fionbio(channel.as_fd(), true)
            .map_err(|e| call_error("making a completion channel non-blocking", e.raw_os_error()))?;
        Ok(channel)
    }
}

impl AsFd for CompChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

/// A completion queue of the device.
pub struct RawCq {
    raw: NonNull<ibv_cq>,
    pub channel: CompChannel,
    /// Events that were taken and are not acknowledged yet. An acknowledgement takes a lock, so many events are
    /// acknowledged at once.
    unacked: AtomicU32,
}
// SAFETY: libibverbs allows any thread to use and destroy a queue.
unsafe impl Send for RawCq {}
// SAFETY: libibverbs locks the calls that several threads may make at once.
unsafe impl Sync for RawCq {}

impl RawCq {
    pub fn new(context: &Arc<Context>, entries: usize) -> Result<RawCq> {
        let channel = CompChannel::new(context)?;
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: context and channel are open.
        let raw = unsafe { verbs()?.ibv_create_cq(context.raw(), entries, null_mut(), channel.raw(), 0)? };
        Ok(RawCq {
            raw: pointer(raw, format_args!("creating a completion queue of {entries} entries"))?,
            channel,
            unacked: AtomicU32::new(0),
        })
    }

    #[inline(always)]
    pub fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    pub fn capacity(&self) -> usize {
        // SAFETY: the queue lives; libibverbs writes the field only in resize, and callers do not run that at the same time.
        unsafe { (*self.raw()).cqe }.max(0) as usize
    }

    pub fn resize(&self, entries: usize) -> Result<()> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        // SAFETY: the queue lives.
        let rc = unsafe { verbs()?.ibv_resize_cq(self.raw(), entries)? };
        returned(rc, format_args!("resizing a completion queue to {entries} entries"))
    }

    /// Takes completions. If the result is less than the length of `into`, the queue had no more completions.
    #[inline(always)]
    pub fn poll(&self, into: &mut [ibv_wc]) -> Result<usize> {
        // SAFETY: the queue lives, and `into` has room for as many entries as its length says.
        let n = unsafe { ibv_poll_cq(self.raw(), into.len() as c_int, into.as_mut_ptr()) };
        if n < 0 { Err(call_error("polling a completion queue", errno::EIO)) } else { Ok(n as usize) }
    }

    /// Arms the queue: the next completion will make the channel readable.
    pub fn arm(&self) -> Result<()> {
        // SAFETY: the queue lives.
        returned(unsafe { ibv_req_notify_cq(self.raw(), 0) }, "arming a completion queue")
    }

    /// Takes the events that have made the channel readable.
    pub fn drain_events(&self) {
        const BULK: u32 = 64;
        let Ok(v) = verbs() else { return };
        loop {
            let (mut cq, mut context) = (null_mut::<ibv_cq>(), null_mut::<c_void>());
            // SAFETY: the channel lives and both out-parameters are local; the descriptor does not block.
            match unsafe { v.ibv_get_cq_event(self.channel.raw(), &mut cq, &mut context) } {
                Ok(0) => {
                    if self.unacked.fetch_add(1, Ordering::Relaxed) + 1 >= BULK {
                        self.acknowledge();
                    }
                }
                _ => return,
            }
        }
    }

    fn acknowledge(&self) {
        let n = self.unacked.swap(0, Ordering::Relaxed);
        if n > 0
            && let Ok(v) = verbs()
        {
            // SAFETY: exactly `n` events of this queue were taken and not acknowledged.
            let _ = unsafe { v.ibv_ack_cq_events(self.raw(), n) };
        }
    }
}

impl Drop for RawCq {
    fn drop(&mut self) {
        // Destroying a queue waits until its events are acknowledged.
        self.drain_events();
        self.acknowledge();
        // SAFETY: made in `new`, and destroyed once, here, before its channel.
        destroyed(verbs().and_then(|v| unsafe { v.ibv_destroy_cq(self.raw()) }), "destroying a completion queue");
    }
}

/// A memory registration of the device.
pub struct RawMr {
    raw: Option<NonNull<ibv_mr>>,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs allows any thread to use and destroy a registration.
unsafe impl Send for RawMr {}
// SAFETY: the fields that are read never change.
unsafe impl Sync for RawMr {}

impl RawMr {
    /// Registers and pins host pages; peers address them from `iova` on.
    ///
    /// # Safety
    /// The range stays mapped until this object is dropped.
    pub unsafe fn host(pd: &Arc<Pd>, addr: usize, len: usize, iova: u64, access: u32) -> Result<RawMr> {
        let v = verbs()?;
        if pd.context.transport == Transport::Iwarp && iova != addr as u64 {
            return Err(Error::fixed(errno::EOPNOTSUPP, "offset: iWARP devices address memory only by this process's addresses"));
        }
        let doing = format_args!("registering {len} bytes at {addr:#x} with {}", pd.context.name);
        // Only the newer call understands the access bits that a driver may ignore.
        let plain = iova == addr as u64 && access & !0xff == 0;
        // SAFETY: the caller of `host` keeps the range mapped; the protection domain lives.
        let raw = unsafe {
            match plain {
                true => v.ibv_reg_mr(pd.raw(), addr as *mut c_void, len, access as c_int)?,
                false => v.ibv_reg_mr_iova2(pd.raw(), addr as *mut c_void, len, iova, access)?,
            }
        };
        Ok(RawMr { raw: Some(pointer(raw, doing)?), _pd: pd.clone() })
    }

    /// Registers a dma-buf. The kernel holds its own reference, so `fd` may be closed afterwards.
    pub fn dmabuf(pd: &Arc<Pd>, fd: BorrowedFd<'_>, offset: u64, len: usize, iova: u64, access: u32) -> Result<RawMr> {
        use std::os::fd::AsRawFd;
        let doing = format_args!("registering {len} bytes at {offset:#x} of a dma-buf with {}", pd.context.name);
        // SAFETY: the protection domain lives and the descriptor is open; the kernel checks its kind.
        let raw = unsafe { verbs()?.ibv_reg_dmabuf_mr(pd.raw(), offset, len, iova, fd.as_raw_fd(), access as c_int)? };
        Ok(RawMr { raw: Some(pointer(raw, doing)?), _pd: pd.clone() })
    }

    /// The local and the remote key.
    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration lives until it is closed, which sets `raw` to `None`.
        self.raw.map_or((0, 0), |mr| unsafe { ((*mr.as_ptr()).lkey, (*mr.as_ptr()).rkey) })
    }

    /// Ends the device's access. On failure the registration stays.
    pub fn close(&mut self) -> Result<()> {
        if let Some(mr) = self.raw {
            // SAFETY: registered, and not closed yet.
            returned(unsafe { verbs()?.ibv_dereg_mr(mr.as_ptr())? }, "closing a region")?;
            self.raw = None;
        }
        Ok(())
    }
}

impl Drop for RawMr {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            crate::log!(Warn, "{e}");
        }
    }
}
