// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Core`: the CUDA driver and everything that the library remembers about it. The other files of this directory add
//! methods to `Core`.

use super::driver::Driver;
use crate::error::Result;
use crate::hmem::{DeviceFacts, HANDLE_BYTES};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

/// Values of [`Export::how`].
pub const HOW_IPC: u32 = 1;
pub const HOW_SEGMENT: u32 = 2;
pub const HOW_POOL: u32 = 3;

/// The primary context of one device; 0 until it is needed. The context is never released, because streams, mappings
/// and pinned memory of unknown lifetime depend on it.
#[derive(Default)]
pub struct Primary {
    pub(super) context: AtomicUsize,
    pub(super) retaining: Mutex<()>,
}

/// The order that a device gives to a NIC's writes into its memory. Determined once per device, because each receive
/// needs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicWrites {
    /// The device's kernels see the writes in order, without further action.
    Ordered,
    /// A driver call makes the writes visible.
    Flushed,
    /// The driver promises neither order nor a call.
    Loose,
}

/// A handle that was exported, kept for the next export of the same memory. Handles of segments are not kept, because a
/// segment's descriptor would keep the memory allocated after the owner has freed it; a pool's descriptor does not.
pub struct CachedHandle {
    pub(super) base: u64,
    pub(super) id: u64,
    pub(super) handle: [u8; HANDLE_BYTES],
    /// Descriptor of the memory's pool.
    pub(super) fd: Option<OwnedFd>,
}

/// Identifies an opened handle: the way of opening, the device if it matters, and the handle itself.
pub type HandleKey = (u32, Option<u32>, [u8; HANDLE_BYTES]);

/// A peer's handle that is open in this process.
pub struct OpenedHandle {
    pub(super) key: HandleKey,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) users: usize,
    /// The device whose context was current when the handle was opened.
    pub(super) device: u32,
    /// The imported pool; 0 for a handle of the plain allocator.
    pub(super) pool: usize,
}

/// Host memory that this library has pinned in a device's context, and the number of users that need the pin.
pub struct PinnedRange {
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) device: u32,
    pub(super) users: usize,
}

/// The driver and everything that the library remembers about it. The struct is shared, because streams and imports
/// outlive the calls that made them. No two locks are held together, except that `opened` is taken before `imports`
/// and `retaining`, and `pinned` before `retaining`.
pub struct Core {
    pub(super) driver: Driver,
    pub(super) facts: Vec<DeviceFacts>,
    pub(super) primaries: Vec<Primary>,
    pub(super) writes: Vec<NicWrites>,
    /// The kernel for lists of each device, once loaded, or the reason why it could not be loaded.
    pub(super) kernels: Vec<OnceLock<Result<usize>>>,
    /// Handles that were exported, oldest first.
    pub(super) handles: Mutex<VecDeque<CachedHandle>>,
    pub(super) opened: Mutex<Vec<OpenedHandle>>,
    /// First addresses of all imports.
    pub(super) imports: RwLock<Vec<u64>>,
    /// Idle streams for synchronous copies, by device.
    pub(super) streams: Mutex<Vec<(u32, usize)>>,
    /// Memory of `alloc`: its device, and the length of the mapping, or 0 for memory of the plain allocator.
    pub(super) allocations: Mutex<HashMap<u64, (u32, usize)>>,
    /// Pinned host memory; the ranges do not overlap.
    pub(super) pinned: Mutex<Vec<PinnedRange>>,
}
