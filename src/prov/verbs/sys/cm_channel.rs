// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Event channels of rdma_cm, in non-blocking mode; `cm_event.rs` reads their events.

use super::abi::rdma_event_channel;
use super::library::{cm, last_errno};
use super::status::call_error;
use crate::error::{Error, Result, errno};
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A queue of events, whose descriptor is readable when [`Channel::next`] has an event.
pub struct Channel {
    raw: NonNull<rdma_event_channel>,
}

// SAFETY: librdmacm may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: reading events is a system call under a lock of librdmacm.
unsafe impl Sync for Channel {}

impl Channel {
    pub fn new() -> Result<Arc<Channel>> {
        // SAFETY: no preconditions.
        let raw = unsafe { cm()?.rdma_create_event_channel()? };
        let Some(raw) = NonNull::new(raw) else {
            return Err(match last_errno() {
                err @ (errno::ENOENT | errno::ENODEV | errno::ENOSYS) => Error::new(
                    errno::ENODEV,
                    format!("rdma_cm: the kernel has no RDMA connection manager (module rdma_ucm): {}", errno::words(err)),
                ),
                err => call_error("opening an rdma_cm event channel", err),
            });
        };
        let channel = Channel { raw };
        let nonblocking = rustix::fs::fcntl_getfl(channel.as_fd())
            .and_then(|flags| rustix::fs::fcntl_setfl(channel.as_fd(), flags | rustix::fs::OFlags::NONBLOCK));
        nonblocking.map_err(|e| Error::os("making an rdma_cm event channel non-blocking", e))?;
        Ok(Arc::new(channel))
    }

    pub(in crate::prov::verbs) fn raw(&self) -> *mut rdma_event_channel {
        self.raw.as_ptr()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed once, here; every identifier of the channel holds it.
        let _ = cm().and_then(|cm| unsafe { cm.rdma_destroy_event_channel(self.raw.as_ptr()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_kernel_the_words_say_what_is_missing() {
        if let Err(e) = Channel::new() {
            assert!(!e.words.is_empty() && e.errno > 0, "{e}");
        }
    }
}
