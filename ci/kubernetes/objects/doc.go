// SPDX-License-Identifier: Apache-2.0

// Package objects brings the objects of an API server in line with a folder of
// manifests, as kubectl apply --prune would: this is how scenarios that were
// written for a folder are told through a real API server.
//
//	folder ──Read──▶ Set ──┐
//	                       ├── Server.Apply: deletes, updates, creates ──▶ API server
//	       what is there ──┘
//
// An API server takes less than a folder does: it gives creation times itself,
// keeps some fields for ever and each address for one Service. What it keeps it
// is made to forget, by deleting and creating again; what it refuses is an
// error of type *Refused.
package objects
