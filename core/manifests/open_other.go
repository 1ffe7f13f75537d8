//go:build !linux

package manifests

import "os"

const openFlags = os.O_RDONLY
