package main

import (
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// root is the directory from which the Containerfile is built.
const root = "../.."

// containerfile is deploy/Containerfile as BuildKit reads it.
type containerfile []instructions.Stage

func readContainerfile(t *testing.T) containerfile {
	t.Helper()
	file, err := os.Open("../Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	stages, global, err := instructions.Parse(parsed.AST, nil)
	if err != nil || len(global) > 0 || len(parsed.Warnings) > 0 {
		t.Fatalf("%v; arguments before the first stage: %v; warnings: %v", err, global, parsed.Warnings)
	}
	return stages
}

// stage returns the stage with the name, and nil for an image.
func (f containerfile) stage(name string) *instructions.Stage {
	if i, found := instructions.HasStage(f, name); found {
		return &f[i]
	}
	return nil
}

// instructionsOf returns the instructions of one kind in a stage.
func instructionsOf[T instructions.Command](stage *instructions.Stage) (all []T) {
	for _, c := range stage.Commands {
		if i, ok := c.(T); ok {
			all = append(all, i)
		}
	}
	return all
}

// expand replaces the variables in a word and removes its quotes.
func expand(t *testing.T, word string, variables map[string]string) string {
	t.Helper()
	var list []string
	for name, value := range variables {
		list = append(list, name+"="+value)
	}
	text, _, err := shell.NewLex('\\').ProcessWord(word, shell.EnvsFromSlice(list))
	if err != nil {
		t.Fatalf("%s: %v", word, err)
	}
	return text
}

// config returns the configuration of the image that an engine makes of a stage with the build arguments, and the base
// of its first stage.
func (f containerfile) config(t *testing.T, name string, arguments map[string]string) (config v1.Config, base string) {
	t.Helper()
	stage := f.stage(name)
	if base = stage.BaseName; f.stage(base) != nil {
		config, base = f.config(t, base, arguments)
	}
	variables := map[string]string{}
	for _, c := range stage.Commands {
		switch c := c.(type) {
		case *instructions.ArgCommand:
			for _, a := range c.Args {
				value, given := arguments[a.Key]
				if !given && a.Value != nil {
					value = *a.Value
				}
				variables[a.Key] = value
			}
		case *instructions.LabelCommand:
			config.Labels = maps.Clone(config.Labels)
			if config.Labels == nil {
				config.Labels = map[string]string{}
			}
			for _, l := range c.Labels {
				config.Labels[expand(t, l.Key, variables)] = expand(t, l.Value, variables)
			}
		case *instructions.EnvCommand:
			for _, e := range c.Env {
				config.Env = append(config.Env, e.Key+"="+expand(t, e.Value, variables))
			}
		case *instructions.UserCommand:
			config.User = c.User
		case *instructions.WorkdirCommand:
			config.WorkingDir = c.Path
		case *instructions.EntrypointCommand:
			if c.PrependShell {
				t.Errorf("%s: its base has no shell for %s", name, c)
			}
			config.Entrypoint = c.CmdLine
		case *instructions.CopyCommand:
		default:
			t.Errorf("%s has %s, which `make image` has no equal of", name, c.Name())
		}
	}
	return config, base
}

// writtenConfig returns the configuration that this program gives to an image.
func writtenConfig(t *testing.T, name string, programs []string, layers *layerCache) v1.Config {
	t.Helper()
	platforms, err := findPlatforms(layers.programs)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(platforms, func(p v1.Platform) bool { return hasPrograms(layers.programs, p, programs) })
	image, err := newImage(layers, name, programs, platforms[i])
	if err != nil {
		t.Fatal(err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return file.Config
}

// Each image of `make image` is a stage of the Containerfile with the same user, entrypoint, environment, labels and
// programs. The last stage is the last image.
func TestTheContainerfileMakesTheSameImages(t *testing.T) {
	stages := readContainerfile(t)
	if last := images[len(images)-1].name; stages[len(stages)-1].Name != last {
		t.Errorf("the last stage is %s, want %s", stages[len(stages)-1].Name, last)
	}
	o := options{programs: compilePrograms(t), version: "0.1.0", revision: "0a1b2c", created: time.Unix(0, 0)}
	layers := &layerCache{options: o, layers: map[string]v1.Layer{}}
	for _, image := range images {
		stage := stages.stage(image.name)
		if stage == nil {
			t.Errorf("no stage makes the image %s", image.name)
			continue
		}
		built, base := stages.config(t, image.name, map[string]string{"VERSION": o.version, "REVISION": o.revision})
		if !strings.HasPrefix(base, "gcr.io/distroless/static-debian12:nonroot") {
			t.Errorf("%s is based on %s", image.name, base)
		}
		if difference := cmp.Diff(writtenConfig(t, image.name, image.programs, layers), built); difference != "" {
			t.Errorf("%s (-make image +Containerfile):\n%s", image.name, difference)
		}
		var programs []string
		for ; stage != nil; stage = stages.stage(stage.BaseName) {
			for _, c := range slices.Backward(instructionsOf[*instructions.CopyCommand](stage)) {
				programs = append(programs, c.DestPath)
				if c.Chown != "0:0" || c.Chmod != "0755" {
					t.Errorf("%s: owner and mode are not those of `make image`, 0:0 and 0755", c)
				}
			}
		}
		slices.Reverse(programs)
		var want []string
		for _, program := range image.programs {
			want = append(want, "/"+path.Join(programDir, program))
		}
		if !slices.Equal(programs, want) {
			t.Errorf("%s has %v, want %v", image.name, programs, want)
		}
	}
}

// Each source of a COPY is in the tree and not ignored, or a RUN of an earlier stage writes it.
func TestEachCopyOfTheContainerfileHasItsSource(t *testing.T) {
	stages := readContainerfile(t)
	ignored := strings.Fields(string(mustRead(t, root+"/.dockerignore")))
	copies := 0
	for i, stage := range stages {
		for _, c := range instructionsOf[*instructions.CopyCommand](&stage) {
			copies++
			for _, source := range c.SourcePaths {
				if c.From == "" {
					first, _, _ := strings.Cut(path.Clean(source), "/")
					found, err := filepath.Glob(filepath.Join(root, source))
					if err != nil || len(found) == 0 || slices.Contains(ignored, first) {
						t.Errorf("%s: %s is not in the tree or ignored: %v", c, source, err)
					}
					continue
				}
				from, isStage := instructions.HasStage(stages, c.From)
				if !isStage || from >= i {
					t.Errorf("%s: %s is no earlier stage", c, c.From)
				} else if !slices.ContainsFunc(instructionsOf[*instructions.RunCommand](&stages[from]),
					func(r *instructions.RunCommand) bool {
						return slices.Contains(strings.Fields(strings.Join(r.CmdLine, " ")), source)
					}) {
					t.Errorf("%s: no RUN of %s writes %s", c, c.From, source)
				}
			}
		}
	}
	if copies < 4 {
		t.Errorf("%d instructions copy", copies)
	}
}

// standInGo is a compiler whose programs print the version of Kubernetes that they are stamped with.
const standInGo = `#!/bin/bash
case $1 in
build)
	[[ "$*" =~ gitVersion=([^ ]+).*\ -o\ ([^ ]+) ]] || exit 1
	printf '#!/bin/sh\necho %s\n' "${BASH_REMATCH[1]}" >"${BASH_REMATCH[2]}"
	chmod +x "${BASH_REMATCH[2]}" ;;
version | env) echo stand-in ;;
*) exit 1 ;;
esac
`

// The script that builds Kubernetes finds all its files in what the stage copies, and writes the program that the stage
// atoll-hosting takes.
func TestTheStageOfKubernetesCopiesWhatItsScriptNeeds(t *testing.T) {
	stages := readContainerfile(t)
	stage, dir, tools := stages.stage("build-kube"), t.TempDir(), t.TempDir()
	work := filepath.Join(dir, instructionsOf[*instructions.WorkdirCommand](stage)[0].Path)
	for _, c := range instructionsOf[*instructions.CopyCommand](stage) {
		for _, source := range c.SourcePaths {
			copyTree(t, filepath.Join(root, source), filepath.Join(work, c.DestPath))
		}
	}
	if err := os.WriteFile(filepath.Join(tools, "go"), []byte(standInGo), 0o755); err != nil {
		t.Fatal(err)
	}
	taken := instructionsOf[*instructions.CopyCommand](stages.stage("atoll-hosting"))[0].SourcePaths[0]
	program := filepath.Join(dir, taken)
	for _, run := range instructionsOf[*instructions.RunCommand](stage) {
		line := strings.ReplaceAll(strings.Join(run.CmdLine, " "), " "+taken, " "+program)
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", line)
		cmd.Dir = work
		cmd.Env = []string{"PATH=" + tools + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + dir}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	if info, err := os.Stat(program); err != nil || info.Mode()&0o111 == 0 {
		t.Errorf("%s: %v, %v", taken, info, err)
	}
}

// copyTree copies a file, or a directory with all its files.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if info.IsDir() {
		err = os.CopyFS(to, os.DirFS(from))
	} else {
		err = os.WriteFile(to, mustRead(t, from), info.Mode().Perm())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Both builds compile with the same flags, and with the version of Go that the module needs.
func TestTheContainerfileCompilesAsTheScript(t *testing.T) {
	script := strings.ReplaceAll(string(mustRead(t, "../../scripts/image.sh")), "\\\n", " ")
	script = strings.Join(strings.Fields(strings.ReplaceAll(script, "$version", "$VERSION")), " ")
	stages := readContainerfile(t)
	runs := instructionsOf[*instructions.RunCommand](stages.stage("build"))
	compile := strings.Join(strings.Fields(strings.Join(runs[len(runs)-1].CmdLine, " ")), " ")
	flags := regexp.MustCompile(`-trimpath .* -o `).FindString(compile)
	if flags == "" || !strings.Contains(script, flags) {
		t.Errorf("the script does not compile with %q", flags)
	}
	for _, variable := range []string{"CGO_ENABLED=0", "GOAMD64=v1"} {
		if !strings.Contains(compile, variable) || !strings.Contains(script, variable) {
			t.Errorf("%s is not in the Containerfile (%s) and the script", variable, compile)
		}
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mustRead(t, "../../go.mod"))
	for _, name := range []string{"build", "build-kube"} {
		if want := "docker.io/library/golang:" + string(version[1]); stages.stage(name).BaseName != want {
			t.Errorf("%s is based on %s, want %s", name, stages.stage(name).BaseName, want)
		}
	}
}
