// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
)

// limit bounds a file: what fits a ConfigMap (1 MiB) fits.
const limit = 1 << 20

// Read reads a file as a whole. Errors name it.
func Read(path string) ([]byte, error) {
	// A pipe would wait for a writer: look before opening.
	info, err := os.Stat(path)
	if err != nil {
		return nil, explain(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("configuration file %s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, explain(path, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, explain(path, err)
	}
	if len(text) > limit {
		return nil, fmt.Errorf("configuration file %s is larger than 1 MiB", path)
	}
	return text, nil
}

func explain(path string, err error) error {
	if perr := new(os.PathError); errors.As(err, &perr) {
		err = perr.Err
	}
	return fmt.Errorf("configuration file %s: %w", path, err)
}

// Exposed returns a note for a world-writable file: any user who writes it controls a
// privileged process. Windows has no such bits.
func Exposed(path string) (notes []config.Finding) {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o002 == 0 {
		return nil
	}
	return []config.Finding{{Where: path, Text: "world-writable: any user of this machine can take over the proxy; run chmod o-w " + strings.TrimSpace(path)}}
}
