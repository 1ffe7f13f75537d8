// SPDX-License-Identifier: Apache-2.0

// Package host is what Tandem sets on a Linux node besides Services: kernel
// parameters, for connection tracking and for the modes that need some. Nothing
// is ever lowered that others may rely on, and a parameter that cannot be
// written is reported, not fatal: in a container much of /proc is read-only and
// often right already. A Namespace is where to work from any goroutine.
package host
