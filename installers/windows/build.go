// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Options select what to build.
type Options struct {
	Exe     string // the program; not changed
	Version string // of the program, as in v1.2.3 or 1.2.3-4-g0123abc
	Arch    string // amd64 or arm64
	License string // the file with the license
	Out     string // the output folder
	Date    time.Time
	Sign    *Signature // nil to sign nothing
}

// Build makes the MSI and the zip, and returns their paths.
func Build(ctx context.Context, o Options) (files []string, err error) {
	stage, err := os.MkdirTemp("", "tandem-msi-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(stage)
	if err := fill(ctx, stage, &o); err != nil {
		return nil, err
	}
	base := filepath.Join(o.Out, fmt.Sprintf("tandem-%s-windows-%s", strings.TrimPrefix(o.Version, "v"), o.Arch))
	if err := buildMSI(ctx, stage, base+".msi", &o); err != nil {
		return nil, fmt.Errorf("%s.msi: %w", base, err)
	}
	if err := buildZip(stage, base+".zip", o.Date); err != nil {
		return nil, fmt.Errorf("%s.zip: %w", base, err)
	}
	return []string{base + ".msi", base + ".zip"}, nil
}

// payload are the files that get installed.
func payload() []string { return []string{"LICENSE.txt", "config.yaml", "tandem.exe"} }

// fill puts the payload into a folder.
func fill(ctx context.Context, stage string, o *Options) error {
	if err := os.WriteFile(filepath.Join(stage, "config.yaml"), config, 0o644); err != nil {
		return err
	}
	for name, from := range map[string]string{"tandem.exe": o.Exe, "LICENSE.txt": o.License} {
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(stage, name), data, 0o755); err != nil {
			return err
		}
	}
	if err := o.Sign.sign(ctx, filepath.Join(stage, "tandem.exe")); err != nil {
		return err
	}
	for _, name := range payload() { // the cabinet keeps the times
		if err := os.Chtimes(filepath.Join(stage, name), o.Date, o.Date); err != nil {
			return err
		}
	}
	return nil
}
