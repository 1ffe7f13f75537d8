// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"archive/zip"
	"compress/flate"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"
)

// buildZip makes a zip of the payload in a folder.
func buildZip(stage, to string, date time.Time) (err error) {
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z := zip.NewWriter(f)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	for _, name := range payload() {
		data, err := os.ReadFile(filepath.Join(stage, name))
		if err != nil {
			return err
		}
		w, err := z.CreateHeader(&zip.FileHeader{Name: "tandem/" + name, Method: zip.Deflate, Modified: date.UTC()})
		if err != nil {
			return err
		}
		if _, err := w.Write(data); err != nil {
			return err
		}
	}
	return z.Close()
}
