// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// target is a system that a program is built for.
type target struct{ os, arch string }

// all returns the targets there are.
func all() []target {
	return []target{{"linux", "amd64"}, {"linux", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}
}

// image reports whether there are images for a target: Kubernetes has no nodes with
// macOS, and none with Windows but those of amd64.
func (t target) image() bool { return t.os == "linux" || t == target{"windows", "amd64"} }

// choose takes some of the targets.
func (r *release) choose(names string) error {
	for _, name := range strings.Split(names, ",") {
		i := slices.IndexFunc(all(), func(t target) bool { return t.String() == name })
		if i < 0 {
			return fmt.Errorf("no target %q: choose of %v", name, all())
		}
		r.targets = append(r.targets, all()[i])
	}
	return nil
}

func (t target) String() string { return t.os + "/" + t.arch }

// program returns the path of the program for a target.
func (r release) program(t target) string {
	name := "tandem-" + t.os + "-" + t.arch
	if t.os == "windows" {
		name += ".exe"
	}
	return filepath.Join(r.out, "bin", name)
}

// docs is the folder of what the program generates: manual pages,
// completions, the unit and an example configuration.
func (r release) docs() string { return filepath.Join(r.out, "docs") }

// programs builds the program for all targets, and lets one for this machine
// write its docs.
func (r release) programs(ctx context.Context) error {
	for _, t := range r.targets {
		if err := r.compile(ctx, t, r.program(t)); err != nil {
			return err
		}
	}
	here := target{runtime.GOOS, runtime.GOARCH}
	program := r.program(here)
	if !slices.Contains(r.targets, here) {
		own, err := os.MkdirTemp("", "tandem-dist-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(own)
		program = filepath.Join(own, "tandem")
		if err := r.compile(ctx, here, program); err != nil {
			return err
		}
	}
	docs := exec.CommandContext(ctx, program, "packaging", r.docs())
	docs.Env = append(os.Environ(), r.epoch()) // manual pages are dated
	if out, err := docs.CombinedOutput(); err != nil {
		return fmt.Errorf("tandem packaging: %w: %s", err, out)
	}
	return nil
}

// toolchain is the Go that releases are built with: two builds are the same only then.
const toolchain = "go1.26.8"

// compile builds the program.
func (r release) compile(ctx context.Context, t target, to string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.version="+r.version, "-o", to, "./cmd/tandem")
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOOS="+t.os, "GOARCH="+t.arch,
		"GOAMD64=v1", "GOARM64=v8.0", "GOTOOLCHAIN="+toolchain, "GOEXPERIMENT=") // independent of the environment
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build for %s: %w: %s", t, err, out)
	}
	return nil
}
