// SPDX-License-Identifier: Apache-2.0

package model

// How many new clients with ClientIP affinity a data plane remembers for one Service port
// and for one namespace in any case, whatever all others do: at once, and as many again
// within a day, the longest that an affinity lasts. Data planes that can evict instead keep
// at most so many, and the oldest goes first. Half of a namespace's share is left to its
// other ports when one is flooded.
const (
	AffinityPortShare      = 1 << 12
	AffinityNamespaceShare = 1 << 13
)
