package supervisor

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"atoll.dev/node"
)

// LoadImage imports the images of a file or directory into the node of a home: an archive in OCI layout or of docker
// save, or a directory in OCI layout. The output of the import goes to out. An import that is repeated changes nothing.
func LoadImage(ctx context.Context, home, programs, path string, out io.Writer) error {
	status, err := node.ReadStatus(home)
	if err != nil {
		return err
	}
	if running, err := node.Running(home); err != nil || !running || status.Init == 0 {
		return errors.Join(fmt.Errorf("%s: the node does not run; start it with atoll node run", home), err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(programs), "node", "containerd"), "ctr", "--address",
		fmt.Sprintf("/proc/%d/root%s", status.Init, containerdSocket), "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdout, cmd.Stderr = out, out
	var archive io.Reader
	if info.IsDir() {
		if _, err := os.Stat(path + "/oci-layout"); err != nil {
			return fmt.Errorf("%s is no directory in OCI layout: %w", path, err)
		}
		r, w := io.Pipe()
		defer r.Close()
		go func() {
			files := tar.NewWriter(w)
			w.CloseWithError(errors.Join(files.AddFS(os.DirFS(path)), files.Close()))
		}()
		archive = r
	} else {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		archive = f
	}
	cmd.Stdin = archive
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("importing %s into the node of %s: %w", path, home, err)
	}
	return nil
}
