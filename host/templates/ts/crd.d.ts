declare const crd: object;
export default crd;
