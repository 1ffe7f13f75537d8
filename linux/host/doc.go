// SPDX-License-Identifier: Apache-2.0

// Package host reads and sets what Services need of a Linux node: sysctls, addresses,
// network namespaces, the lock that keeps two proxies apart. Limits are never
// lowered, since others may rely on them. A parameter that cannot be written is
// reported and not fatal: in a container much of /proc is read-only and often right
// already.
package host
