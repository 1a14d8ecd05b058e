// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The C border: the only place with exported functions, raw caller pointers and `int` results. A
//! function parses, calls and converts. The header's items come in the order of the modules, and of
//! each module's lines, within the sections that types.rs lists (tests/header/layout.rs).
#![allow(non_camel_case_types)]
// The C caller's promises are stated in each function's documentation and in docs/abi.md.
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
