# The two commands a newcomer needs are `make demo` and `make test`; `make help` lists the rest.
JOBS ?= $(shell nproc)
CUDA ?= AUTO
MODEL ?= models/tiny-k31
QUESTION ?= What is 17 + 25?

.PHONY: help demo build test test-all bench lint format clean

help:
	@echo 'make demo      install what is missing, build the CPU binary, ask the shipped model a question'
	@echo 'make build     build/perigee (with the CUDA part when nvcc is found)'
	@echo 'make test      build and run the tests'
	@echo 'make test-all  the same, then sanitizers, clang, long fuzzing and big sweeps: hours'
	@echo 'make bench     measure this machine with dummy weights; JSON under bench/results/'
	@echo 'make lint      formatting, layering and static checks; make format rewrites'
	@echo 'make clean     remove build folders'

demo:
	@scripts/install-deps demo
	@scripts/build demo perigee
	@scripts/demo "$(MODEL)" "$(QUESTION)"

build:
	@scripts/install-deps build
	@scripts/build release perigee -DPERIGEE_CUDA=$(CUDA)

test:
	@scripts/install-deps test
	@scripts/build test all -DPERIGEE_CUDA=$(CUDA)
	@scripts/run-tests

test-all: test
	@scripts/run-tests-all

bench: build
	@scripts/run-bench

lint:
	@scripts/install-deps lint
	@scripts/lint

format:
	@scripts/install-deps lint
	@scripts/lint --fix

clean:
	rm -rf build build-*
