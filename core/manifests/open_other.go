// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package manifests

import "os"

const openFlags = os.O_RDONLY
