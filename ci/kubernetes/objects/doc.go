// SPDX-License-Identifier: Apache-2.0

// Package objects applies a folder of manifests to an API server, as kubectl apply
// --prune would, so that scenarios written for a folder can run with a real API
// server.
//
//	folder ──Read──▶ Set ──┐
//	                       ├── Server.Apply: deletes, updates, creates ──▶ API server
//	       what is there ──┘
//
// An API server accepts less than a folder does: it sets creation times itself, some
// fields are immutable, and an address belongs to one Service. Objects with changed
// immutable fields are deleted and created again; rejected ones are an error of type
// *RejectedError.
package objects
