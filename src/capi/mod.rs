// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C interface: the only place with exported functions, raw pointers of the caller and `int` results. A
//! function parses its arguments, calls `fabric`, and converts the result. The most frequent calls instead
//! load the entry of an object's table of operations and jump (`prov/ops.rs`).
//!
//! The header `include/gdrfab.h` is generated from these files. Its items come in the order of the modules
//! below, and in a module in the order of its lines, within the sections that `types.rs` lists
//! (tests/header/layout.rs). Read `boundary.rs` first: it has the conversions that every call uses.
#![allow(non_camel_case_types)]
// The promises of the C caller stand in each function's documentation and in docs/abi.md.
#![allow(clippy::missing_safety_doc)]

mod boundary;

pub mod types;

mod values;

mod waiting;

pub mod info;

pub mod nic;

pub mod objects;

pub mod connection;

pub mod av;

pub mod memory;

pub mod hmem;

pub mod rma;

pub mod atomic;

pub mod list;

pub mod msg;

pub mod tagged;

pub mod cq;

pub mod cntr;

pub mod eq;

pub mod options;

pub mod paths;

pub mod log;
