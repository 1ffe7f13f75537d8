// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// copyright is the file with our licence and those of everything in the programs, which
// packages, images and the MSI contain: most licences require their text with copies.
func (r release) copyright() string { return filepath.Join(r.docs(), "copyright") }

// licenses writes it. A module without a licence is an error.
func (r release) licenses(ctx context.Context) error {
	own, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	b := bytes.NewBuffer(own)
	fmt.Fprintf(b, "\n%s\nThird-party software in the programs, with its licences\n", rule)
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	if err := appendLicenses(b, "Go standard library", strings.TrimSpace(string(goroot))); err != nil {
		return err
	}
	modules, err := r.modules()
	if err != nil {
		return err
	}
	dirs, err := r.sources(ctx, modules)
	if err != nil {
		return err
	}
	for _, m := range modules {
		if err := appendLicenses(b, m, dirs[m]); err != nil {
			return err
		}
	}
	return os.WriteFile(r.copyright(), b.Bytes(), 0o644)
}

const rule = "================================================================================"

// modules are those in the programs of all targets, as path@version.
func (r release) modules() (all []string, err error) {
	for _, t := range r.targets {
		info, err := buildinfo.ReadFile(r.program(t))
		if err != nil {
			return nil, err
		}
		for _, d := range info.Deps {
			path, version := used(d)
			all = append(all, path+"@"+version)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// sources are the folders of modules in the module cache.
func (r release) sources(ctx context.Context, modules []string) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"mod", "download", "-json"}, modules...)...)
	cmd.Dir = r.root
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download: %w", err)
	}
	dirs := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var m struct{ Path, Version, Dir string }
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return dirs, nil
		} else if err != nil {
			return nil, err
		}
		dirs[m.Path+"@"+m.Version] = m.Dir
	}
}

// appendLicenses adds the texts of a module: licences, notices, patent grants.
func appendLicenses(b *bytes.Buffer, name, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	legal := regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)([.-].*)?$`)
	found := false
	for _, e := range entries {
		if e.IsDir() || !legal.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		found = true
		fmt.Fprintf(b, "\n%s\n%s: %s\n\n%s", rule, name, e.Name(), text)
	}
	if !found {
		return fmt.Errorf("%s has no licence in %s", name, dir)
	}
	return nil
}
