// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The address space of a process at the other end of a connection, and the only way to its memory. A process number does not name
//! an address space: after execve() the number is the same and the memory another program's, and a number is given again when its
//! process has ended. Each copy therefore begins with the guard of the address space that connected, in the same call, which
//! moves nothing where the guard is not there.

mod address_space;
mod batch;
mod call;
mod guard;
mod own_memory;
mod pages;
mod populate;
mod procfs;
mod reach;

pub use address_space::{AddressSpace, STEP};
pub use batch::Batch;
pub use call::{Attach, Piece, piece};
pub use guard::Guard;
pub use own_memory::copy_own;
pub use reach::Reach;
