// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"syscall"
)

// openFlags never wait: what was a regular file a moment ago may be a FIFO now, and
// nobody may ever write to that.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK
