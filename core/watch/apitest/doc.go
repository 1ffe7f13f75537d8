// SPDX-License-Identifier: Apache-2.0

// Package apitest is an API server for tests, in this process and without a cluster.
// It stores objects with resource versions and a log of their changes, and serves
// them over HTTP as a kube-apiserver does: lists in pages, watches with bookmarks,
// streaming lists (WatchList, KEP-3157), label and field selectors, protobuf and
// JSON, bearer tokens, TLS with HTTP/2.
//
//	test ──Put, Delete, Compact──▶ store ──log──▶ streams ──▶ client
//	     ──Fail, Freeze, Cut, Replay ──▶ faults
//
// It does not validate, default or authorize, keeps resource versions across
// Stop and Start, and serves Services, Nodes, Events, EndpointSlices and
// ServiceCIDRs.
package apitest
