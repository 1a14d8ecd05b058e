// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that operations touch: registered regions, and device memory by way of staging buffers.
//!
//! In: attributes of a registration; keys, addresses and lengths that a peer named. Out: pieces of memory that the kernel or a
//! device's driver can copy, held so that a region cannot close under a copy.
//!
//! - `mr`: regions, their keys and their table; read this file first
//! - `locate`: finds where the memory of a new region lies
//! - `source`: the bytes of an outgoing body: memory of this side, of regions, or of a device
//! - `staging`: host buffers through which a device's memory is sent and received

pub mod locate;
pub mod mr;
pub mod source;
pub mod staging;
