// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk" // the formats register themselves
	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// packages builds the packages of all formats for Linux.
func (r release) packages(ctx context.Context) error {
	dir := filepath.Join(r.out, "packages")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range r.targets {
		if t.os != "linux" {
			continue
		}
		for _, format := range []string{"deb", "rpm", "apk"} {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := r.pack(t, format, dir); err != nil {
				return fmt.Errorf("%s for %s: %w", format, t, err)
			}
		}
	}
	return nil
}

// pack writes one package, under the name that is usual for its format. The versions of
// pre-releases have a "~" before what sorts first, which names of files cannot have: GitHub
// renames such a file on its way into a release, and the lists of repositories would miss it.
func (r release) pack(t target, format, dir string) error {
	info, err := r.recipe(t, format)
	if err != nil {
		return err
	}
	scripts, err := os.MkdirTemp("", "tandem-dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scripts)
	if err := r.date(info, scripts); err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := packager.Package(info, &b); err != nil {
		return err
	}
	name := strings.ReplaceAll(packager.ConventionalFileName(info), "~", "-")
	return os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644)
}

// date replaces scripts by copies of the release's date in a folder: an apk keeps the times of
// their files.
func (r release) date(info *nfpm.Info, dir string) error {
	for _, p := range scriptsOf(info) {
		if *p == "" {
			continue
		}
		text, err := os.ReadFile(*p)
		if err != nil {
			return err
		}
		*p = filepath.Join(dir, filepath.Base(*p))
		if err := errors.Join(os.WriteFile(*p, text, 0o755), os.Chtimes(*p, r.when, r.when)); err != nil {
			return err
		}
	}
	return nil
}

// scriptsOf returns the paths of the scripts that packages have.
func scriptsOf(info *nfpm.Info) []*string {
	return []*string{&info.Scripts.PostInstall, &info.Scripts.PreRemove, &info.Scripts.PostRemove, &info.APK.Scripts.PostUpgrade}
}

// recipe reads what a package contains. Its relative paths are relative to the
// file that has them.
func (r release) recipe(t target, format string) (*nfpm.Info, error) {
	home := filepath.Join(r.root, "installers", "packages")
	text, err := os.ReadFile(filepath.Join(home, "nfpm.yaml"))
	if err != nil {
		return nil, err
	}
	values := map[string]string{"ARCH": t.arch, "VERSION": r.version, "PROGRAM": r.program(t), "DOCS": r.docs()}
	config, err := nfpm.ParseWithEnvMapping(bytes.NewReader(text), func(name string) string { return values[name] })
	if err != nil {
		return nil, err
	}
	info, err := config.Get(format)
	if err != nil {
		return nil, err
	}
	info = nfpm.WithDefaults(info)
	info.MTime = r.when
	if format == "apk" {
		info.VersionMetadata = "" // apk's versions have no place for it
	}
	paths := scriptsOf(info)
	for _, c := range info.Contents {
		paths = append(paths, &c.Source)
	}
	for _, p := range paths {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(home, *p)
		}
	}
	return info, nfpm.PrepareForPackager(info, format)
}
