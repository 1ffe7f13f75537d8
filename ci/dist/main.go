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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// release is what is built, and where.
type release struct {
	root    string // of the repository
	out     string
	version string // semantic, without v
	commit  string
	when    time.Time // in all artifacts

	targets []target // nil for all
	only    string   // steps, with commas between them; "" for all
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var r release
	flag.StringVar(&r.root, "root", "../..", "the repository")
	flag.StringVar(&r.out, "out", "../../dist", "the folder to fill; what was there is replaced")
	flag.StringVar(&r.version, "version", "devel", "the version, as git describe has it")
	flag.Func("targets", "such as linux/amd64,windows/amd64 (default all)", r.choose)
	flag.StringVar(&r.only, "only", "", "the steps to take, such as programs,packages (default all)")
	flag.Parse()
	if err := r.build(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1)
	}
}

// build builds everything next to the folder and renames it into place when all
// of it is there.
func (r release) build(ctx context.Context) (err error) {
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
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"programs", r.programs},
		{"licenses", r.licenses},
		{"packages", r.packages},
		{"images", r.images},
		{"installers", r.others},
		{"sbom", r.materials},
		{"checksums", r.checksums},
		{"sign", r.sign},
	} {
		if r.only != "" && !slices.Contains(strings.Split(r.only, ","), step.name) {
			continue
		}
		begun := time.Now()
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("dist: %s, %s\n", step.name, time.Since(begun).Round(time.Millisecond))
	}
	return errors.Join(os.RemoveAll(final), os.Rename(r.out, final))
}

// identify finds out what the release is called and when it is from.
func (r *release) identify(ctx context.Context) (err error) {
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	if r.targets == nil {
		r.targets = all()
	}
	r.version = semantic(r.version)
	if r.commit == "" {
		r.commit, _ = r.git(ctx, "rev-parse", "HEAD") // a source archive has none
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		if epoch, err = r.git(ctx, "log", "-1", "--format=%ct"); err != nil {
			return fmt.Errorf("no time of the commit, set SOURCE_DATE_EPOCH: %w", err)
		}
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	r.when = time.Unix(seconds, 0).UTC()
	return nil
}

func (r *release) git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", r.root}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}

// semantic makes a version that packages can be compared by of what git describe
// says: commits after a tag come after it, and a commit without one before every
// release.
func semantic(described string) string {
	tag := regexp.MustCompile(`^v?(\d+\.\d+\.\d+(?:-[a-z][a-z0-9.]*)?)(?:-(\d+)-(g[0-9a-f]+))?$`)
	clean, dirty := strings.CutSuffix(described, "-dirty")
	m := tag.FindStringSubmatch(clean)
	version, extra := "0.0.0-git", []string{strings.NewReplacer("-", ".", "/", ".").Replace(clean)}
	if m != nil {
		version, extra = m[1], m[2:4]
	}
	if dirty {
		extra = append(extra, "dirty")
	}
	if extra = slices.DeleteFunc(extra, func(s string) bool { return s == "" }); len(extra) == 0 {
		return version
	}
	return version + "+" + strings.Join(extra, ".")
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

func (r release) epoch() string { return fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.when.Unix()) }
