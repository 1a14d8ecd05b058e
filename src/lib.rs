// SPDX-License-Identifier: Apache-2.0 OR MIT
//! gdrfab: register memory of any kind and move it between processes, from C.
//!
//! The C border is [`capi`], where a caller's word is taken: for handles, for the memory that operations name, which below is
//! an [`sys::iov::Iov`], and for calls that do not overlap ([`sync::serial::Promise`]). Only `unsafe` makes either of the two,
//! and what takes one needs no other promise. The rest of `unsafe` says whose word it relies on: the C caller's, a driver's, or
//! its own caller's. Layers import only what stands above them in this list.

pub mod environment;
pub mod error;
pub mod guard;
pub mod log;
pub mod reserve;
pub mod room;
pub mod signals;

pub mod config;
pub mod hmem;
pub mod mr;
pub mod prov;
pub mod rdm;

pub mod fabric;

pub mod capi;
pub mod sync;
pub mod sys;
