// SPDX-License-Identifier: Apache-2.0

// Package host is what Tandem asks a Windows node about itself.
package host
