// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var r release
	flag.StringVar(&r.root, "root", "../..", "the repository")
	flag.StringVar(&r.out, "out", "../../dist", "the folder to fill; what was there is replaced")
	flag.StringVar(&r.version, "version", "devel", "the version, as git describe has it")
	flag.Func("targets", "such as linux/amd64,windows/amd64 (default all)", r.choose)
	flag.StringVar(&r.only, "only", "", "the steps to take, such as programs,packages (default all)")
	sign := flag.Bool("sign", false, "sign what was built in the folder with the key in "+signingKey+", and build nothing")
	flag.Parse()
	do := r.build
	if *sign {
		do = r.sign
	}
	if err := do(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// build builds everything next to the folder and renames it into place when all
// of it is there. The signing key must not be in the environment: it would be in that of
// every program that builds something.
func (r release) build(ctx context.Context) (err error) {
	if os.Getenv(signingKey) != "" {
		return fmt.Errorf("%s is set while building: ci/dist/run keeps it for -sign alone", signingKey)
	}
	if err := r.identify(ctx); err != nil {
		return err
	}
	final := r.out
	r.out = final + ".new"
	if err := errors.Join(os.RemoveAll(r.out), os.MkdirAll(r.out, 0o755)); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(r.out))
		}
	}()
	err = r.steps(ctx, []step{
		{"programs", r.programs},
		{"licenses", r.licenses},
		{"packages", r.packages},
		{"images", r.images},
		{"installers", r.others},
		{"managers", r.managers},
		{"sbom", r.materials},
		{"provenance", r.provenance},
		{"checksums", r.checksums},
	})
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(final), os.Rename(r.out, final))
}

// step is a part of what is built or signed.
type step struct {
	name string
	do   func(context.Context) error
}

// steps takes those of the steps that were chosen, and says which one it is at.
func (r release) steps(ctx context.Context, all []step) error {
	for i, s := range all {
		if r.only != "" && !slices.Contains(strings.Split(r.only, ","), s.name) {
			continue
		}
		fmt.Printf("dist: %d of %d: %s ...\n", i+1, len(all), s.name)
		begun := time.Now()
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Printf("dist: %d of %d: %s, %s\n", i+1, len(all), s.name, time.Since(begun).Round(time.Millisecond))
	}
	return nil
}

// others runs the programs named dist of the installers that have one. They
// write into the folder, too.
func (r release) others(ctx context.Context) error {
	programs, err := filepath.Glob(filepath.Join(r.root, "installers", "*", "dist"))
	if err != nil {
		return err
	}
	for _, program := range programs {
		cmd := exec.CommandContext(ctx, program, r.out, r.version)
		cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), r.epoch())
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
	}
	return nil
}
