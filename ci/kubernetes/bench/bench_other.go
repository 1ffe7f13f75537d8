//go:build !linux

package main

import (
	"context"
	"errors"
)

func bench(context.Context, options) error { return errors.New("needs Linux") }
