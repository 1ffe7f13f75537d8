// SPDX-License-Identifier: Apache-2.0

// Package host reads a Windows node's addresses, and facts for tandem doctor.
package host
