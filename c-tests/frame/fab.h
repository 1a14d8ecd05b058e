/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * All helpers for programs about connected endpoints. A helper uses only those above it in this list. Helpers for
 * connectionless endpoints are in fab_rdm.h.
 */
#ifndef FAB_H
#define FAB_H

#include "claim.h"
#include "pattern.h"
#include "fab_data.h"
#include "fab_provider.h"
#include "fab_wait.h"
#include "fab_local.h"
#include "fab_node.h"
#include "fab_dmabuf.h"
#include "fab_cuda.h"
#include "fab_mem.h"
#include "fab_ways.h"

#endif
