// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An order of copies: posted without waiting, completed in order.

use super::memory::{Copy, Dir};
use crate::error::{Error, Result, errno};

/// Copies that one call of a driver is given: larger batches are known to hang some.
pub const TOGETHER: usize = 256;

/// Copies of one order. Each gets the next number, beginning with 1; used by one thread at a time.
pub trait Stream: Send {
    /// Starts a copy behind those posted before, and gives its number.
    ///
    /// # Safety
    /// Both sides stay valid until the copy is done.
    unsafe fn post(&mut self, dir: Dir, to: u64, from: u64, len: usize) -> Result<u64>;

    /// Starts several, none of which needs another one's result, in one call of the driver where it can; gives the last
    /// one's number. After an error some may have begun: the stream is of no use any more.
    ///
    /// # Safety
    /// As for `post`, for each.
    unsafe fn post_all(&mut self, copies: &[Copy]) -> Result<u64> {
        let mut last = 0;
        for c in copies {
            // SAFETY: each copy's sides stay, as the caller says.
            last = unsafe { self.post(c.dir, c.to, c.from, c.len)? };
        }
        Ok(last)
    }

    /// As `post_all`, of thousands. `reached`: a program on the device can touch both sides of each. `name`, if not 0: a
    /// new one, under which they may be posted again.
    ///
    /// # Safety
    /// As for `post`, for each.
    unsafe fn post_list(&mut self, copies: &[Copy], _reached: bool, _name: u64) -> Result<u64> {
        let mut last = 0;
        for some in copies.chunks(TOGETHER) {
            // SAFETY: each copy's sides stay, as the caller says.
            last = unsafe { self.post_all(some)? };
        }
        Ok(last)
    }

    /// Posts once more what `post_list` was given under this name; `None`: it is not kept, and nothing was posted.
    ///
    /// # Safety
    /// As for `post`, for each.
    unsafe fn post_again(&mut self, _name: u64) -> Result<Option<u64>> {
        Ok(None)
    }

    /// The number of the last copy that is done; all before it are. An error ends the stream: what was
    /// posted and not yet reported is lost, and no longer touches memory.
    fn done(&mut self) -> Result<u64>;

    /// Has nothing more begin of what was posted, where that can be had; to be called until true: nothing is under way. An
    /// error: that cannot be known.
    fn end(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Copies posted from now on begin after what the caller's own stream holds now.
    fn after(&mut self, _stream: u64) -> Result<()> {
        Err(Error::new(errno::ENOSYS, "this vendor's copies cannot be ordered after a stream of the caller"))
    }
}
