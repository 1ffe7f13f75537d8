// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const sums = "SHA256SUMS"

// checksums writes the checksums of all files, as sha256sum -c reads them.
func (r release) checksums(context.Context) error {
	var b strings.Builder
	if err := r.files(func(name, sum string) { fmt.Fprintf(&b, "%s  %s\n", sum, name) }); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, sums), []byte(b.String()), 0o644)
}

// files calls do with the name and the SHA-256 of each file, in the order of their names.
func (r release) files(do func(name, sum string)) error {
	return filepath.WalkDir(r.out, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		sum, err := digest(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(r.out, path)
		do(filepath.ToSlash(name), fmt.Sprintf("%x", sum))
		return err
	})
}

func digest(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return h.Sum(nil), err
}
