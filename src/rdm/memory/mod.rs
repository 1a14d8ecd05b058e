// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Registered memory: one domain over the domains of all lanes, and memory that messages expose to peers.
//!
//! The program registers regions, and sends messages that are too long to be sent at once. This folder gives each region
//! and each such message the descriptors and keys by which each lane and its peers name the memory. Read `lane_domains`
//! first. `regions` is the table of the program's regions, `region_quota` divides the regions that a lane offers between
//! the program and its messages, and `registration_cache` keeps registrations of device memory from one message to the
//! next. The calls of the layer above are in `rdm/domain.rs`.

pub mod lane_domains;
pub mod region_quota;
pub mod regions;
pub mod registration_cache;
