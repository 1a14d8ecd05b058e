// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Access rights of a region.

bitflags::bitflags! {
    /// Rights of a region; the bits are libfabric's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Access: u64 {
        /// Target of atomics that only a card carries out, never a CPU.
        const ATOMIC = 1 << 4;
        const READ = 1 << 8;
        const WRITE = 1 << 9;
        const RECV = 1 << 10;
        const SEND = 1 << 11;
        const REMOTE_READ = 1 << 12;
        const REMOTE_WRITE = 1 << 13;
    }
}

impl Access {
    /// True if an operation may change the memory, so that a file has to be mapped writable.
    pub fn is_written(self) -> bool {
        self.intersects(Access::REMOTE_WRITE | Access::RECV | Access::READ | Access::ATOMIC)
    }

    /// True if peers may access the region.
    pub fn is_remote(self) -> bool {
        self.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::ATOMIC)
    }
}
