package manifests

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

// Objects are what a folder holds for us, in the order of files and lines.
type Objects struct {
	Services     []*model.Service
	Slices       []*model.Slice
	Nodes        []*model.Node
	ServiceCIDRs []*model.ServiceCIDR
}

// Result is what a folder holds, and what was wrong with it.
type Result struct {
	Objects
	Problems []Problem
	Ignored  map[string]int // objects of other kinds, by kind
}

// Read reads a folder, a single file or the standard input (Stdin) once. An error means that there is no such folder or that
// it cannot be listed; anything else that is wrong is in Result.Problems, and
// all that is right is in Result.Objects. Node ports outside the range are wrong.
func Read(ctx context.Context, dir string, nodePorts config.PortRange) (Result, error) {
	return newReader(originOf(dir), dir, nodePorts).Read(ctx)
}

// ReadFS is Read for the root of a file system, such as an embedded one, with any
// node ports.
func ReadFS(ctx context.Context, fsys fs.FS) (Result, error) {
	return NewReader(fsys).Read(ctx)
}

// Read reads what has changed in the folder and returns all that is in it now.
// An error means that the folder could not be listed.
func (r *Reader) Read(ctx context.Context) (Result, error) {
	f, err := r.scan(ctx)
	if err != nil {
		return Result{}, fmt.Errorf("manifests %s: %w", printable(r.dir), err)
	}
	return Result{Objects: f.collect(), Problems: f.problems, Ignored: f.ignored}, nil
}

func (f *folder) collect() Objects {
	var all Objects
	for _, p := range f.objects {
		switch o := p.moved(); {
		case o.service != nil:
			all.Services = append(all.Services, o.service)
		case o.slice != nil:
			all.Slices = append(all.Slices, o.slice)
		case o.node != nil:
			all.Nodes = append(all.Nodes, o.node)
		case o.cidr != nil:
			all.ServiceCIDRs = append(all.ServiceCIDRs, o.cidr)
		}
	}
	return all
}
