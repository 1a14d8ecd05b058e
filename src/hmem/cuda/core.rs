// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver, and what is remembered about it: what the other files work on.

use super::driver::Driver;
use crate::error::Result;
use crate::hmem::{DeviceFacts, HANDLE_BYTES};
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

/// Tags of [`Export::how`].
pub const HOW_IPC: u32 = 1;
pub const HOW_SEGMENT: u32 = 2;
pub const HOW_POOL: u32 = 3;

/// The primary context of one device, once somebody needed it. It is never released: streams, mappings
/// and pinned memory of unknown lifetime depend on it.
#[derive(Default)]
pub struct Primary {
    pub(super) context: AtomicUsize,
    pub(super) retaining: Mutex<()>,
}

/// How a device treats writes that reach it through a NIC. Found out once: the question is asked per receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicWrites {
    /// Its own kernels see them in order, with nothing done.
    Ordered,
    /// The driver's call makes them visible.
    Flushed,
    /// Neither is known of it.
    Loose,
}

/// Handles given away, oldest first. Segments are not among them: their descriptor would keep the memory
/// on the device after its owner freed it, while one of a pool does not.
pub struct CachedHandle {
    pub(super) base: u64,
    pub(super) id: u64,
    pub(super) handle: [u8; HANDLE_BYTES],
    /// Of the pool.
    pub(super) fd: Option<OwnedFd>,
}

/// What identifies an opening: how, on which device if that matters, and the handle.
pub type HandleKey = (u32, Option<u32>, [u8; HANDLE_BYTES]);

/// A handle that is open.
pub struct OpenedHandle {
    pub(super) key: HandleKey,
    pub(super) base: u64,
    pub(super) len: u64,
    pub(super) users: usize,
    /// The device whose context was current when it was opened.
    pub(super) device: u32,
    /// Where it came from; 0 for the plain allocator's.
    pub(super) pool: usize,
}

/// Host memory that this library has pinned, in the context of a device, and how many want it to stay so.
pub struct PinnedRange {
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) device: u32,
    pub(super) users: usize,
}

/// The driver and everything that is remembered about it. Shared, because streams and imports outlive
/// the calls that made them. Locks are never held two at a time, except `opened` before `imports`, and `pinned` before any.
pub struct Core {
    pub(super) driver: Driver,
    pub(super) facts: Vec<DeviceFacts>,
    pub(super) primaries: Vec<Primary>,
    pub(super) writes: Vec<NicWrites>,
    /// The kernel for lists, once it was loaded for a device; or why it could not be.
    pub(super) kernels: Vec<OnceLock<Result<usize>>>,
    pub(super) handles: Mutex<VecDeque<CachedHandle>>,
    pub(super) opened: Mutex<Vec<OpenedHandle>>,
    /// Bases of all imports.
    pub(super) imports: RwLock<Vec<u64>>,
    /// Idle streams of synchronous copies, by device.
    pub(super) streams: Mutex<Vec<(u32, usize)>>,
    /// What `alloc` gave: device, and the mapping's length or 0 for the plain allocator's.
    pub(super) allocations: Mutex<HashMap<u64, (u32, usize)>>,
    /// Host memory that was pinned, no byte of it twice.
    pub(super) pinned: Mutex<Vec<PinnedRange>>,
}
