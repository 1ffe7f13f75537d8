// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"syscall"
)

// openFlags include O_NONBLOCK: a file may have been replaced by a FIFO, on which
// opening would block.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK
