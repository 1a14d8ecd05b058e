// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paths that bytes can take, and how callers and processes restrict them.

bitflags::bitflags! {
    /// Ways for the bytes of an operation to travel.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
    pub struct Paths: u64 {
        /// Both processes map the pages; the initiator's CPU copies.
        const DIRECT = 1;
        /// Cross-memory attach: the initiator's kernel copies.
        const CMA = 2;
        /// Through buffers of the library, with the target's progress.
        const STAGED = 4;
        /// The initiator's device driver copies through a mapping of the peer's device memory.
        const IPC = 8;
        /// The RDMA device reads and writes host pages that it has pinned (ibv_reg_mr).
        const NIC = 16;
        /// The RDMA device reaches the memory through a dma-buf (ibv_reg_dmabuf_mr).
        const DMABUF = 32;
        /// The RDMA device reaches device memory through the vendor's peer-memory module (ibv_reg_mr).
        const PEER_MEM = 64;
        /// The kernel copies between the memory and a socket; the target's progress puts the bytes in place.
        const SOCKET = 128;
    }
}

impl Paths {
    /// Every path of the shm provider, fastest first.
    pub const SHM: [Paths; 4] = [Paths::DIRECT, Paths::IPC, Paths::CMA, Paths::STAGED];
    /// Every path, fastest first.
    pub const ALL: [Paths; 8] =
        [Paths::DIRECT, Paths::IPC, Paths::NIC, Paths::DMABUF, Paths::PEER_MEM, Paths::CMA, Paths::SOCKET, Paths::STAGED];
    /// Entries of an array by path, with room for later paths.
    pub const MAX: usize = 16;
    /// The names of the paths, in the order of the bits.
    pub const WORDS: [&str; 8] = ["direct", "cma", "staged", "ipc", "nic", "dmabuf", "peer-mem", "socket"];

    /// The fastest of the set.
    pub fn best(self) -> Paths {
        Paths::ALL.into_iter().find(|p| self.contains(*p)).unwrap_or(Paths::empty())
    }

    /// The index of one path, the number of its bit, in an array of `MAX` entries.
    #[inline]
    pub const fn index(self) -> usize {
        self.bits().trailing_zeros() as usize % Paths::MAX
    }

    /// The names, as "direct,cma"; "none" for an empty set.
    pub fn words(self) -> String {
        let names: Vec<&str> = Paths::WORDS.iter().enumerate().filter(|(i, _)| self.bits() & 1 << i != 0).map(|(_, w)| *w).collect();
        if names.is_empty() { "none".into() } else { names.join(",") }
    }
}

/// A caller's restriction of a region or an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathPolicy {
    pub require: Paths,
    pub forbid: Paths,
}

impl PathPolicy {
    /// The required paths, or all if none is required, without the forbidden ones.
    #[inline]
    pub fn allowed(self) -> Paths {
        let base = if self.require.is_empty() { Paths::all() } else { self.require };
        base - self.forbid
    }
}
