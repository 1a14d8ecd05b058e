// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies with the memory of the process at the other end of a connection.
//!
//! A pid does not name an address space: after execve() the pid is the same but the memory is another program's, and a
//! pid is reused after its process has ended. Therefore each system call that copies begins with the *guard* of the
//! address space that connected, a page at a random address with a random word. The call moves nothing if the guard is
//! not there.
//!
//! A connection uses `reach.rs`. That file copies by `address_space.rs`, which checks the guard (`guard.rs`) in each
//! call, and makes sure that a copy waits for no missing page, by the kernel's page map (`pages.rs`) and by threads
//! that fault pages in (`populate.rs`). `call.rs` and `batch.rs` have the system calls and their arguments, and
//! `procfs.rs` reads /proc. Read `reach.rs` first. `own_memory.rs` uses the same system call for memory of this
//! process.

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
