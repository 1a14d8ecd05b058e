// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A stream of copies: posting does not wait, and the copies complete in order.

use super::memory::{Dir, StreamCopy};
use crate::error::{Error, Result, errno};

/// Largest number of copies for one call of a driver. Some drivers hang on larger batches.
pub const TOGETHER: usize = 256;

/// Copies that complete in order. The n-th copy has the number n, counted from 1. A stream is used by one thread at a
/// time.
pub trait Stream: Send {
    /// Starts a copy behind the copies posted before, and returns its number.
    ///
    /// # Safety
    /// Both sides stay valid until the copy is done.
    unsafe fn post(&mut self, dir: Dir, to: u64, from: u64, len: usize) -> Result<u64>;

    /// Posts several copies, none of which depends on another; in one call of the driver if the driver has such a call.
    /// Returns the number of the last copy. After an error some copies may have begun, and the stream must not be used
    /// any more.
    ///
    /// # Safety
    /// As for `post`, for each copy.
    unsafe fn post_all(&mut self, copies: &[StreamCopy]) -> Result<u64> {
        let mut last = 0;
        for c in copies {
            // SAFETY: the caller promises that both sides of each copy stay valid until it is done.
            last = unsafe { self.post(c.dir, c.to, c.from, c.len)? };
        }
        Ok(last)
    }

    /// Like `post_all`, for thousands of copies. `reached`: kernels of the device can access both sides of every copy.
    /// A `name` other than 0 must be new to this stream; by this name, `post_again` can repeat the list.
    ///
    /// # Safety
    /// As for `post`, for each copy.
    unsafe fn post_list(&mut self, copies: &[StreamCopy], _reached: bool, _name: u64) -> Result<u64> {
        let mut last = 0;
        for some in copies.chunks(TOGETHER) {
            // SAFETY: the caller promises that both sides of each copy stay valid until it is done.
            last = unsafe { self.post_all(some)? };
        }
        Ok(last)
    }

    /// Posts once more the list that `post_list` got with this name. `None`: the list was not kept, and nothing was
    /// posted.
    ///
    /// # Safety
    /// As for `post`, for each copy of the list.
    unsafe fn post_again(&mut self, _name: u64) -> Result<Option<u64>> {
        Ok(None)
    }

    /// The number of the last copy that is done. All copies with smaller numbers are done too. An error ends the
    /// stream: posted copies that were not reported as done are lost, and no longer access memory.
    fn done(&mut self) -> Result<u64>;

    /// Prevents posted copies that have not begun from beginning, if the stream can do that; a stream that cannot
    /// returns false every time. True: no copy is in flight, and none will begin; until then the caller calls again. An
    /// error means that copies may still run, and that nobody can know.
    fn end(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Makes all copies that are posted from now on wait for the present work of `stream`, a driver stream of the
    /// caller.
    fn after(&mut self, _stream: u64) -> Result<()> {
        Err(Error::new(errno::ENOSYS, "GDRFAB_OPT_STREAM: this vendor's copies cannot wait for a stream of the caller"))
    }
}
